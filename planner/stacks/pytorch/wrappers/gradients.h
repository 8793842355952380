// Gradients of whole parameters, as autograd leaves them.
#pragma once

#include "models/host_optimizer.h"
#include "planner/stacks/pytorch/step.h"

namespace plimsoll::planner::pytorch {

// Plain and DDP: the first micro-batch's gradient stays until zero_grad, later ones are added to
// it. DDP with bucket views copies each gradient into the bucket and drops it, at the last
// micro-batch; an optimizer in the backward steps with it and drops it, and one on the host copies
// it there and drops it if it is told to.
class WholeGradients : private StepPart {
 public:
  // Where gradients go: they stay the parameters', DDP's bucket views take them
  // (gradient_as_bucket_view), or they are held until all of the micro-batch are there.
  enum class Goes : std::uint8_t { nowhere, to_views, held };
  WholeGradients(Step& step, Goes goes = Goes::nowhere)
      : StepPart(step), goes_(goes), stepped_(step.strategy.optimizer_in_backward) {}
  TensorId begin(const ModuleNames& names, std::int64_t elements, bool adapter);
  bool keeps(std::int64_t elements) const {
    return goes_ == Goes::held || (s_.first_micro() && !goes_at_once(elements));
  }
  void end(const ModuleNames& names, TensorId written);
  bool stay() const { return goes_ == Goes::nowhere && !stepped_; }  // until zero_grad

 private:
  bool goes_at_once(std::int64_t elements) const {
    return stepped_ || (goes_ == Goes::to_views && s_.micros == 1) ||
           (strategy_.offload.gradients && models::steps_on_host(strategy_, elements));
  }
  Goes goes_;
  bool stepped_;
};

// The head's weight, which an embedding may share.
bool is_head(const ModuleNames& names);

}  // namespace plimsoll::planner::pytorch
