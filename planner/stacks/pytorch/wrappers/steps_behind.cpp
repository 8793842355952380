// LOMO's hooks (lomo_optim 0.1.1): a gradient waits in .grad until the next one is there, in the
// next layer too. In front of a repeated layer's first step it is the last one of the layer behind
// it, or what came before all of them.
#include "models/optimizers.h"
#include "planner/stacks/pytorch/wrappers/replicated.h"

namespace plimsoll::planner::pytorch {

void Replicated::before_layer_backward(std::size_t r, std::size_t j) {
  if (!models::rule_of(strategy_.optimizer).torch.behind) return;
  const Run& run = s_.runs[r];
  const auto trained = [](const LayerPart& layer) {
    std::vector<Parameter> out = in_backward_order(layer.parameters);
    std::erase_if(out, [](const Parameter& p) { return !p.trainable; });
    return out;
  };
  if (j + 1 == run.stride()) {  // the first of an instance to run backward
    const Parameter last = trained(run.layer(0)).back();
    const TensorId beyond = waiting_->gradient.tensor;
    // One op steps what any of these left.
    check(waiting_->parameter.elements == last.elements, ErrorKind::unsupported, [&] {
      return "--optimizer " + std::string(models::rule_of(strategy_.optimizer).name) +
             " is not modelled for " + parts_.model_type +
             ": what waits for a layer's first gradient is of another size before the first layer "
             "than between two";
    });
    carried_ = b_.tensor("carried.grad", storage(Count(last.elements), regime_.weight),
                         Category::gradients);
    waiting_->gradient = {carried_, +1, beyond};
  }
  last_of_instance_ = j == 0;
  in_layer_ = trained(run.layer(j)).size();
  begun_in_layer_ = arrived_in_layer_ = 0;
}

// Of tables and the head, which others do not step as matrices.
void Replicated::say_extents(const ModuleNames& names, models::SteppedTensor& parameter) const {
  const EndNames& ends = end_names();
  const auto is = [&](const ModuleNames& of) {
    return names.module == of.module && names.leaf == Leaf::weight;
  };
  if (is(ends.head.base) || is(ends.tokens))
    parameter.columns = d_.table_width();
  else if (is(ends.positions) || is(ends.token_types))
    parameter.columns = d_.hidden;
  if (parameter.columns > 0) parameter.rows = parameter.elements / parameter.columns;
}

void Replicated::step_behind(const Begun& arrived) {
  if (waiting_) step_parameter(waiting_->gradient, waiting_->parameter);
  waiting_ = {{arrived.gradient}, arrived.parameter};
  if (!last_of_instance_ || ++arrived_in_layer_ != in_layer_) return;
  check(arrived.gradient == carried_, ErrorKind::unsupported, [&] {
    return "--optimizer " + std::string(models::rule_of(strategy_.optimizer).name) +
           " is not modelled for " + parts_.model_type + ": its layers' last gradients are several";
  });
  waiting_->gradient = {carried_, +1};  // of the instance that ran last
  last_of_instance_ = false;
}

// fused_backward, behind loss.backward().
void Replicated::end_backward() {
  if (!waiting_) return;
  b_.open(models::kNoGroup, true, s_.times);
  step_parameter(waiting_->gradient, waiting_->parameter);
  b_.close();
  waiting_.reset();
}

}  // namespace plimsoll::planner::pytorch
