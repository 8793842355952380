// `fit --explain [TENSOR]`: how a plan's figures come about.
#pragma once

#include <string>

#include "reports/text.h"
#include "tools/cli/request.h"

namespace plimsoll::tools {

// `asked`: "all" (the whole plan), "time", or a tensor's name. `options`: those of the request,
// which are asked again with changes. Error{bad_input}: no such tensor.
std::string explained(const std::string& model, const Options& options, const Request& request,
                      const std::string& asked, const reports::Terminal& terminal);

}  // namespace plimsoll::tools
