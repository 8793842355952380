// `fit --explain`: how the figures of a plan come about, as text.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "reports/record.h"
#include "reports/text.h"

namespace plimsoll::reports {

// Tensors of one name, the numbers of their layers left out.
struct TensorGroup {
  std::string name;  // "layers.*.mlp.up_proj.out"
  std::string category, born, dies;  // of the first
  std::int64_t count = 0, at_peak = 0;  // those that live at the peak
  Bytes bytes, peak_bytes;  // of all; of those
  Bytes least, most;  // of one
};
// Of a plan with full detail, the largest at the peak first.
std::vector<TensorGroup> tensor_groups(const Plan& plan);

// The question with one change, planned again; nothing where the change cannot be made.
struct Replanned {
  std::string option;  // "--recompute full"
  Bytes peak, device;
  std::vector<TensorGroup> groups;
};

// The whole plan: what the device bytes are the sum of, which tensors the peak is, who says every
// figure that is not derived, and what would make the peak smaller.
std::string explanation(const Plan& plan, const std::vector<Replanned>& changes,
                        const Terminal& terminal);

// The groups whose names `asked` is or ends (whole parts, * for any number). Error{bad_input}:
// none.
std::vector<TensorGroup> groups_called(const std::vector<TensorGroup>& all,
                                       const std::string& asked);

// Some tensors: who makes them, how long they live, how they grow, what would make them smaller.
// `growth`: the question with another batch, and how many times its tokens are there.
struct TokenGrowth {
  Replanned change;
  double tokens = 1;
};
std::string tensor_explanation(const Plan& plan, const std::vector<TensorGroup>& asked,
                               const std::vector<TokenGrowth>& growth,
                               const std::vector<Replanned>& changes, const Terminal& terminal);

// Where the step's time goes, op by op: as planner/time/op_times.h.
struct OpTimeLine {
  std::string op, phase;
  double times = 0, flops = 0, bytes = 0, kernels = 0, seconds = 0;
};
std::string time_explanation(const Plan& plan, const std::vector<OpTimeLine>& ops,
                             const Terminal& terminal);

}  // namespace plimsoll::reports
