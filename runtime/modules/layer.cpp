#include "runtime/modules/layer.h"

#include <algorithm>

namespace plimsoll::runtime {

using models::decisions::LayerOpKind;
using models::decisions::RequiresGrad;
using models::decisions::Trained;

namespace {

std::vector<Trained> trained_of(const LayerOps& layer, const LayerParameters& parameters) {
  std::vector<Trained> trained;
  for (const models::Module& module : layer.modules) {
    if (models::is_norm(module.kind)) {
      const NormParameters& norm = parameters.norms[module.place];
      trained.push_back({norm.weight.trains(), norm.bias.trains(), false});
    } else if (module.kind == models::ModuleClass::experts) {
      const ExpertsParameters& experts = parameters.experts[module.place];
      trained.push_back({.weight = experts.gate_up.trains(), .down = experts.down.trains()});
    } else {
      const LinearParameters& linear = parameters.linears[module.place];
      trained.push_back({linear.weight.trains(), linear.bias.trains(), linear.lora_a.trains()});
    }
  }
  return trained;
}

// Whether the op's backward reads it; an attention's own result too.
bool reads_in_backward(const LayerOp& op, ValueId id, const RequiresGrad& gradients,
                       std::span<const Trained> trained, bool flash) {
  const bool in =
      std::ranges::any_of(op.in, [&](const ValuePart& part) { return part.value == id; });
  switch (op.kind) {
    case LayerOpKind::norm:
    case LayerOpKind::activation:
      return in && gradients.value(op.out);
    case LayerOpKind::attention:
      return gradients.value(op.out) && (in || (flash && op.out == id));
    case LayerOpKind::gemms:
      return in && std::ranges::any_of(op.gemms, [&](const auto& gemm) {
               return trained[static_cast<std::size_t>(gemm.module)].reads_input();
             });
    case LayerOpKind::experts:
      return (trained[static_cast<std::size_t>(op.module)].weight && op.in[1].value == id) ||
             (gradients.value(id) && !op.normalizes && op.in[0].value == id);
    default:
      return false;
  }
}

LastReads last_reads(const LayerOps& layer, const RequiresGrad& gradients,
                     std::span<const Trained> trained, bool flash) {
  const std::size_t none = layer.ops.size();
  LastReads reads;
  for (auto* list : {&reads.forward, &reads.backward, &reads.again})
    list->assign(layer.values.size(), none);
  for (std::size_t i = 0; i < layer.ops.size(); ++i) {
    const LayerOp& op = layer.ops[i];
    for (const ValuePart& part : op.in) {
      if (!part || op.kind == LayerOpKind::rotary) continue;
      reads.forward[static_cast<std::size_t>(part.value)] = i;
      if (std::cmp_less_equal(i, gradients.last))
        reads.again[static_cast<std::size_t>(part.value)] = i;
    }
  }
  for (std::size_t v = 0; v < layer.values.size(); ++v)
    for (std::size_t i = layer.ops.size(); i-- > 0;)
      if (reads_in_backward(layer.ops[i], static_cast<ValueId>(v), gradients, trained, flash))
        reads.backward[v] = i;
  return reads;
}

std::unique_ptr<LayerModule> module_of(LayerContext& context, std::size_t at) {
  switch (context.layer.ops[at].kind) {
    case LayerOpKind::norm:
      return norm_module(context, at);
    case LayerOpKind::gemms:
      return gemms_module(context, at);
    case LayerOpKind::rotary:
      return rotary_module(context, at);
    case LayerOpKind::attention:
      return attention_module(context, at);
    case LayerOpKind::activation:
      return activation_module(context, at);
    case LayerOpKind::residual:
      return residual_module(context, at);
    case LayerOpKind::experts:
      return experts_module(context, at);
  }
  fail(ErrorKind::internal, "an op of no kind");
}

}  // namespace

Layer::Layer(Worker& worker, const ModelSettings& settings, const LayerOps& ops,
             LayerParameters parameters, std::int64_t index, ConstTensorView rotary_table,
             bool below)
    : context_(std::make_unique<LayerContext>(LayerContext{
          worker, settings, ops, std::move(parameters), index, rotary_table, {}, {}})) {
  const std::vector<Trained> trained = trained_of(ops, context_->parameters);
  context_->requires_grad =
      models::decisions::requires_grad(ops, trained, below, settings.keeps, settings.attention);
  context_->reads = last_reads(ops, context_->requires_grad, trained,
                               settings.attention == models::Attention::flash);
  for (std::size_t i = 0; i < ops.ops.size(); ++i) modules_.push_back(module_of(*context_, i));
}

Tensor Layer::forward(Tensor x, Forward how, LayerSaved& saved) {
  const bool to_last = how == Forward::to_last_saved;
  ForwardPass pass{.layer = *context_,
                   .saved = saved,
                   .saves = how == Forward::all || to_last,
                   .keeps_input = how == Forward::keeps_input,
                   .to_last = to_last};
  saved.values.resize(context_->layer.values.size());
  saved.beside.resize(modules_.size());
  saved.adapters.resize(context_->parameters.linears.size());
  saved.routed.resize(modules_.size());
  input_of(saved) = std::move(x);
  const std::size_t end =
      to_last ? static_cast<std::size_t>(context_->requires_grad.last + 1) : modules_.size();
  for (std::size_t i = 0; i < end; ++i) modules_[i]->forward(pass);
  return to_last ? Tensor() : std::move(pass.value(context_->layer.output));
}

void Layer::backward(Tensor& d, LayerSaved saved) {
  if (!requires_grad()) return;
  saved.values.resize(context_->layer.values.size());
  saved.beside.resize(modules_.size());
  saved.adapters.resize(context_->parameters.linears.size());
  saved.routed.resize(modules_.size());
  BackwardPass pass{.layer = *context_, .saved = saved, .modules = modules_, .gradients = {}};
  pass.gradients.resize(context_->layer.values.size());
  pass.gradient(context_->layer.output) = Gradient::of(std::move(d));
  for (std::size_t i = modules_.size(); i-- > 0;) {
    LayerModule* const waits = std::exchange(pass.waits, nullptr);
    modules_[i]->backward(pass);
    if (waits != nullptr) waits->backward_late(pass);
  }
  d = std::move(pass.gradient(models::kBlockInput).own);
}

Bytes Layer::workspace() const {
  Bytes most;
  for (const auto& module : modules_) most = std::max(most, module->workspace());
  return most;
}

}  // namespace plimsoll::runtime
