// What each technique of a plan saves: the same workload planned again without it; and what those
// would save that it does not use and that change no result.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "planner/plan.h"

namespace plimsoll::planner {

struct Technique {
  bool used = false;
  std::string option;  // that asks for it: "--zero 3"
  std::string instead;  // used: what stands in its place where it is taken away: "--zero 0"
  std::string concession;  // not used: what it asks of the user beside its option, or ""
  std::function<void(Question&)> apply;  // takes it away, or adds it
};

// Those that are used, then the others. Of what divides the model itself (tensor, pipeline, context
// and expert parallelism) there is none: without it each rank has another share of the batch.
std::vector<Technique> techniques_of(const Question& question);

// `plan`: of the question; `replan` plans a changed one. By what they save on the device, the most
// first. One that cannot be added (Error) is left out; one that cannot be taken away says why.
// `advance` is called as each is done.
std::vector<reports::Saving> savings_of(const Question& question, const reports::Plan& plan,
                                        const std::vector<Technique>& techniques,
                                        const std::function<reports::Plan(const Question&)>& replan,
                                        const std::function<void()>& advance);

}  // namespace plimsoll::planner
