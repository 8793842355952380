// A layer: its block's ops, forward and from the end backward (models/decisions/layer_ops.h).
#pragma once

#include "runtime/modules/layer_module.h"

namespace plimsoll::runtime {

// Ops of the worker's phase, behind the worker's prefix; the caller sets both.
class Layer {
 public:
  // `rotary_table`: fp32 [2, length, head_dim / 2], or none. `below`: something below the layer is
  // trained. `worker`, `settings` and `ops` outlive it.
  Layer(Worker& worker, const ModelSettings& settings, const LayerOps& ops,
        LayerParameters parameters, std::int64_t index, ConstTensorView rotary_table, bool below);

  // How far forward goes, and what it leaves in `saved`.
  enum class Forward : std::uint8_t {
    all,  // what backward reads
    keeps_input,  // its input alone: the beginning of a checkpoint
    keeps_nothing,
    to_last_saved,  // what backward reads; ends with the last of it, as nothing reads the result
  };
  // The stream after the layer, from `x` [T, h] before it; none with to_last_saved.
  Tensor forward(Tensor x, Forward how, LayerSaved& saved);

  // `d` [T, h], the gradient of the stream, is updated in place; without anything wanted below it
  // dies with its last reader.
  void backward(Tensor& d, LayerSaved saved);

  // Whether a gradient comes to the layer at all, and whether it finds anything saved.
  bool requires_grad() const { return context_->requires_grad.any(context_->layer); }
  bool saves() const { return context_->requires_grad.last >= 0; }
  const models::decisions::RequiresGrad& gradients() const { return context_->requires_grad; }
  // The largest scratch that one of its ops needs.
  Bytes workspace() const;

 private:
  std::unique_ptr<LayerContext> context_;
  std::vector<std::unique_ptr<LayerModule>> modules_;
};

// The input that a layer's forward has kept.
inline Tensor& input_of(LayerSaved& saved) {
  return saved.values[models::kBlockInput];
}

}  // namespace plimsoll::runtime
