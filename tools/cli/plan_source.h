// From a plan's document back to the question that it answers.
#pragma once

#include "models/workload_reader.h"
#include "tools/cli/request.h"

namespace plimsoll::tools {

// What `text` (a plan's JSON) asked, to be planned again in full detail. Error{bad_input} naming
// `source`: a bare parameter count, or a fingerprint that is not the workload's.
Request request_from_plan(const std::string& text, const std::string& source);

// The model with its first `layers` layers. Error{bad_input}: it has fewer, or a list of its
// configuration has another length.
std::shared_ptr<const LoadedModel> with_layers(const LoadedModel& model, std::int64_t layers);

}  // namespace plimsoll::tools
