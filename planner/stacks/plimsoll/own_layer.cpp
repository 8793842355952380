#include "planner/stacks/plimsoll/own_layer.h"

namespace plimsoll::planner::plimsoll_stack {

using models::decisions::LayerOpKind;
using models::decisions::Trained;

namespace {

OwnLayer own_layer(const LayerPart& part, bool input_grad, const models::Strategy& strategy) {
  OwnLayer layer{.part = &part, .ops = &models::decisions::own_ops(*part.block), .gradients = {}};
  std::array<Trained, models::decisions::kMostModules> trained;
  for (std::size_t i = 0; i < layer.ops->modules.size(); ++i) {
    const models::Module& module = layer.ops->modules[i];
    if (models::is_norm(module.kind)) {
      const NormPart& norm = part.norms[module.place];
      trained[i] = {norm.train_weight, norm.bias && norm.train_bias, false};
    } else if (module.kind == models::ModuleClass::experts) {
      const ExpertsPart& experts = part.experts[module.place];
      trained[i] = {.weight = experts.train_gate_up, .down = experts.train_down};
    } else {
      const LinearPart& linear = part.linears[module.place];
      trained[i] = {linear.train_weight, linear.bias && linear.train_bias, linear.lora_rank > 0};
    }
  }
  layer.gradients = models::decisions::requires_grad(
      *layer.ops, trained, input_grad, models::decisions::keeps_of(strategy.recompute.kind),
      strategy.attention);
  return layer;
}

}  // namespace

std::vector<OwnLayer> own_layers(const LayerRun& run, const models::Strategy& strategy) {
  std::vector<OwnLayer> layers;
  layers.reserve(run.pattern.size());
  for (const LayerPart& part : run.pattern)
    layers.push_back(own_layer(part, run.input_grad, strategy));
  return layers;
}

bool OwnLayer::attends_backward() const {
  for (const LayerOp& op : ops->ops)
    if (op.kind == LayerOpKind::attention && gradients.value(op.out)) return true;
  return false;
}

}  // namespace plimsoll::planner::plimsoll_stack
