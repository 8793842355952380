// What the ops of a layer have in common: each kind is a module with its forward and its backward,
// which hand on values and gradients by their number in the block.
#pragma once

#include <memory>
#include <vector>

#include "models/decisions/requires_grad.h"
#include "runtime/modules/operand.h"
#include "runtime/modules/settings.h"
#include "runtime/parameter.h"

namespace plimsoll::runtime {

using models::ValueId;
using models::decisions::LayerOp;
using models::decisions::LayerOps;
using models::decisions::ValuePart;

// What a mixture leaves beside values, and makes for itself in backward.
struct RoutedSaved {
  Tensor routes, scores, gate_up, product, scores_grad;
};

// What forward leaves for backward; none of what no gradient needs.
struct LayerSaved {
  std::vector<Tensor> values;  // by ValueId
  std::vector<Tensor> beside;  // by op: statistics, log-sum-exp, probabilities
  std::vector<Tensor> adapters;  // x · A, by the GEMM's place
  std::vector<RoutedSaved> routed;  // by op
};

// Which op reads a value last. By ValueId; no op: a number behind all of them.
struct LastReads {
  std::vector<std::size_t> forward, backward;
  std::vector<std::size_t> again;  // forward, as far as backward reads what it makes
};

struct LayerContext {
  Worker& worker;
  const ModelSettings& settings;
  const LayerOps& layer;
  LayerParameters parameters;
  std::int64_t index = 0;  // of the layer
  ConstTensorView rotary_table;
  models::decisions::RequiresGrad requires_grad;
  LastReads reads;
};

struct ForwardPass {
  const LayerContext& layer;
  LayerSaved& saved;
  bool saves = true;  // what backward reads stays
  bool keeps_input = false;
  bool to_last = false;  // up to the last op that leaves something; nothing reads what it makes

  Tensor& value(ValueId id) { return saved.values[static_cast<std::size_t>(id)]; }
  bool keeps(ValueId id) const {
    return (keeps_input && id == models::kBlockInput) || (saves && layer.requires_grad.saves(id));
  }
  Operand read(ValueId id, std::size_t at) {
    const std::vector<std::size_t>& last = to_last ? layer.reads.again : layer.reads.forward;
    return reading(value(id), !keeps(id) && last[static_cast<std::size_t>(id)] == at);
  }
  // Of what is made again, no op.
  bool nobody_reads(ValueId id) const {
    return to_last && !keeps(id) &&
           layer.reads.again[static_cast<std::size_t>(id)] == layer.layer.ops.size();
  }
  bool ends_with(std::size_t at) const {
    return to_last && std::cmp_equal(layer.requires_grad.last, at);
  }
};

class LayerModule;

struct BackwardPass {
  const LayerContext& layer;
  LayerSaved& saved;
  const std::vector<std::unique_ptr<LayerModule>>& modules;
  std::vector<Gradient> gradients;  // by ValueId
  LayerModule* waits = nullptr;  // for its input, which the next op makes again

  Tensor& value(ValueId id) { return saved.values[static_cast<std::size_t>(id)]; }
  Gradient& gradient(ValueId id) { return gradients[static_cast<std::size_t>(id)]; }
  bool wants(ValueId id) const { return layer.requires_grad.value(id); }
  Operand read(ValueId id, std::size_t at) {
    return reading(value(id), layer.reads.backward[static_cast<std::size_t>(id)] == at);
  }
};

class LayerModule {
 public:
  LayerModule(LayerContext& context, std::size_t at) : context_(context), at_(at) {}
  virtual ~LayerModule() = default;
  LayerModule(const LayerModule&) = delete;
  LayerModule& operator=(const LayerModule&) = delete;

  virtual void forward(ForwardPass& pass) = 0;
  virtual void backward(BackwardPass& pass) = 0;
  // What had to wait for its input.
  virtual void backward_late(BackwardPass&) {}
  // Its result once more, from what was saved.
  virtual void again(BackwardPass&) {}
  // The largest scratch that one of its ops needs.
  virtual Bytes workspace() const { return {}; }

 protected:
  const LayerOp& op() const { return context_.layer.ops[at_]; }
  Worker& worker() const { return context_.worker; }
  const ModelSettings& settings() const { return context_.settings; }
  bool wants(ValueId id) const { return context_.requires_grad.value(id); }

  LayerContext& context_;
  std::size_t at_;  // of the layer's ops
};

// One for each kind of op. `context` outlives it.
std::unique_ptr<LayerModule> norm_module(LayerContext& context, std::size_t at);
std::unique_ptr<LayerModule> gemms_module(LayerContext& context, std::size_t at);
std::unique_ptr<LayerModule> rotary_module(LayerContext& context, std::size_t at);
std::unique_ptr<LayerModule> attention_module(LayerContext& context, std::size_t at);
std::unique_ptr<LayerModule> activation_module(LayerContext& context, std::size_t at);
std::unique_ptr<LayerModule> residual_module(LayerContext& context, std::size_t at);
std::unique_ptr<LayerModule> experts_module(LayerContext& context, std::size_t at);

// Columns of the tensor in which a value lies.
inline kernels::Columns columns(TensorView view, const ValuePart& part) {
  return {view, part.first, part.width, part.step};
}

}  // namespace plimsoll::runtime
