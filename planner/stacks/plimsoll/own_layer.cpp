#include "planner/stacks/plimsoll/own_layer.h"

namespace plimsoll::planner::own {

using models::decisions::LayerOpKind;
using models::decisions::Trained;

OwnLayer own_layer(const LayerRun& run, const models::Strategy& strategy) {
  check(run.period() == 1, ErrorKind::unsupported,
        "our own runtime has no layers that alternate in what they compute");
  const LayerPart& part = run.pattern.front();
  OwnLayer layer{.part = &part, .ops = &models::decisions::own_ops(*part.block), .gradients = {}};
  std::array<Trained, models::decisions::kMostModules> trained;
  for (std::size_t i = 0; i < layer.ops->modules.size(); ++i) {
    const models::Module& module = layer.ops->modules[i];
    if (models::is_norm(module.kind)) {
      const NormPart& norm = part.norms[module.place];
      trained[i] = {norm.train_weight, norm.bias && norm.train_bias, false};
    } else {
      const LinearPart& linear = part.linears[module.place];
      trained[i] = {linear.train_weight, linear.bias && linear.train_bias, linear.lora_rank > 0};
    }
  }
  layer.gradients = models::decisions::requires_grad(
      *layer.ops, trained, run.input_grad, models::decisions::keeps_of(strategy.recompute.kind),
      strategy.attention);
  return layer;
}

bool OwnLayer::attends_backward() const {
  for (const LayerOp& op : ops->ops)
    if (op.kind == LayerOpKind::attention && gradients.value(op.out)) return true;
  return false;
}

}  // namespace plimsoll::planner::own
