// Answers to published rows, for reading, for programs, and as a picture.
#pragma once

#include <string>
#include <vector>

#include "reports/plan_json.h"
#include "reports/text.h"
#include "tools/published/answers.h"

namespace plimsoll::tools {

std::string published_table(const std::vector<PublishedAnswers>& all,
                            const reports::Terminal& terminal);

// plimsoll.published/1
std::string published_json(const std::vector<PublishedAnswers>& all, const reports::Tool& tool);

// Planned against measured; "" where nothing was answered.
std::string published_svg(const std::vector<PublishedAnswers>& all);

}  // namespace plimsoll::tools
