// Memory over one step for a terminal: a column of letters for each part of the step.
#pragma once

#include <string>

#include "reports/page/timeline_svg.h"
#include "reports/text.h"

namespace plimsoll::reports {

// Heights are high-water marks; a column that stands for several points shows the highest. "" where
// there is no point (model states only).
std::string timeline_plot(const Timeline& timeline, const Terminal& terminal);

}  // namespace plimsoll::reports
