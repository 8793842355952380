// From options to a question for the planner: every option is used or refused by name.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "models/lengths.h"
#include "planner/plan.h"
#include "tools/cli/gpu_source.h"
#include "tools/cli/model_source.h"
#include "tools/cli/options.h"

namespace plimsoll::tools {

struct Sources {
  ModelSource models;
  GpuSource gpus;
};

struct Request {
  std::shared_ptr<const LoadedModel> model;  // nullptr: `parameters` is the question
  std::optional<Count> parameters;
  planner::Question question;  // points into `model`
  std::optional<models::BatchesOfData> data;  // whose worst is the question
  std::vector<std::string> notes;  // of files that were read instead of options
};

// `model`: the MODEL argument, "" for none. Error{bad_input}: values out of range, contradictions;
// Error{unsupported}: what this version does not model.
Request request_from(const std::string& model, const Options& options, Sources& sources);

// A plan of this request's question, with what only the door knows filled in.
reports::Plan completed(const Request& request, reports::Plan plan);

// The answer, with what only the door knows filled in: configuration, cluster, fingerprint, notes.
reports::Plan answer(const Request& request);

}  // namespace plimsoll::tools
