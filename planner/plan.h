// The planner's one door: a question in, a plan out.
#pragma once

#include "models/cluster_spec.h"
#include "models/model_spec.h"
#include "models/run_spec.h"
#include "reports/record.h"

namespace plimsoll::planner {

// How much of the timeline and of the tensor table to fill in.
enum class Detail { none, abridged, full };

struct Question {
  const models::ModelSpec* model = nullptr;
  models::Strategy strategy;
  models::Batch batch;
  models::ClusterSpec cluster;
  Detail detail = Detail::abridged;
  // Whether loading the model is planned, too; and whether it is loaded to the device where nothing
  // is packed (device_map), and not moved there; whether the checkpoint itself is packed; whether
  // an adapter that was trained is loaded onto it, and merged.
  struct Load {
    bool asked = false, device_map = false, packed = false, merges = false;
  } load;
  bool remedies = true;  // where it does not fit: plan again with each change that could help
  // Names of options that the user gave, and of those that a file of theirs sets: remedies
  // contradict neither.
  std::vector<std::string> given, fixed;
};

// Device memory that there is, and what of it may be used; nothing where no card is known.
struct Capacity {
  std::optional<Bytes> total, usable;
};
Capacity capacity_of(const Question& question);

// Throws Error{unsupported} where the stack, model or option cannot be predicted (named in the
// message), Error{bad_input} for combinations that cannot be.
// `replays`: of this very question.
struct Replays;
reports::Plan plan(const Question& question, Replays& replays);
reports::Plan plan(const Question& question);

// Of what no tensor accounts for: the figures of a plan, or the high end of what was seen.
enum class Overheads { typical, high_end };

// Whether it fits, as plan() says (its `fits`, or its `high_end`), and where it does its peak and
// what the device holds by those overheads, without the rest; what no capacity bounds fits.
// `parts`: model_parts() of the question.
struct ModelParts;
struct Fit {
  bool fits = false;
  Bytes peak, device;
};
Fit fit(const Question& question, const ModelParts& parts, Overheads overheads, Replays& replays);

// `--params N`: model states only, in the ZeRO paper's layout (arXiv 1910.02054 §3.1): mixed
// precision 2 + 2 + 12 bytes per parameter, fp32 4 + 4 + 8, divided by ZeRO stage over the ranks.
reports::Plan plan_states(Count parameters, const Question& question);

}  // namespace plimsoll::planner
