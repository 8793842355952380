// A decoder layer, forward and backward.
#pragma once

#include <span>

#include "planner/stacks/pytorch/attention.h"

namespace plimsoll::planner::pytorch {

class LayerWriter : public AttentionWriter {
 public:
  using AttentionWriter::AttentionWriter;

  // A layer's arguments. A checkpoint's frame holds them until its first norm's backward is done
  // (that node is the last that refers to the frame).
  enum Held { kHeldInput, kHeldCos, kHeldSin, kHeldMask, kHeldPositions, kHeldCount };
  using Arguments = std::array<Ref, kHeldCount>;
  void hold(const Arguments& arguments, bool first_of_checkpoint) {
    held_ = arguments;
    first_ = first_of_checkpoint;
  }
  void begin_step(Tokens tokens) {
    AttentionWriter::begin_step(tokens);
    hold({}, true);
    stop_early(false);
  }
  // The last layer of a checkpoint: its recomputation ends with the last tensor that autograd
  // saved (torch/utils/checkpoint.py, set_checkpoint_early_stop).
  void stop_early(bool stops) { stops_early_ = stops; }
  // The rotary tables that every layer reads.
  void set_rotary(TensorId cos, TensorId sin) {
    cos_ = cos;
    sin_ = sin;
  }

  // One layer: reads `input`, writes `output`.
  void forward(const LayerPart& layer, Ref input, Ref output, bool input_grad, LayerSaved& saved);
  // Reads d(output), writes d(input) (nothing where input_grad is false).
  void backward(const LayerPart& layer, Ref input, Ref d_output, Ref d_input, bool input_grad,
                const LayerSaved& saved);

 private:
  // What requires a gradient in a layer.
  struct Flow {
    bool input, x, q, k, v, attention, middle, y, gate, up, product, output;
  };
  static Flow flow_of(const LayerPart& layer, bool input_grad);
  bool stops() const { return phase_ == Phase::recompute && stops_early_; }
  // The 16-bit branch's gradient is a cast of the fp32 stream's, made as the branches part.
  TensorId branch(const char* name, TensorId d) {
    return cast(name, d, stream_values(), regime_.residual, linear_out());
  }
  std::int64_t stream_values() const { return checked_multiply(tokens_.total(), d_.hidden); }
  AttentionInput attention_input(const Flow& flow, const LayerSaved& s) const;
  std::array<TensorId, 3> core_attention_backward(const AttentionNames& names,
                                                  const AttentionInput& in, const LayerSaved& saved,
                                                  TensorId d_out);

  // Llama-like layers (layer_llama.cpp).
  void llama_forward(const LayerPart&, Ref, Ref, const Flow&, LayerSaved&);
  void llama_backward(const LayerPart&, Ref, Ref, Ref, const Flow&, const LayerSaved&);
  void llama_mlp_forward(const LayerPart&, const Flow&, LayerSaved&);
  Sum llama_mlp_backward(const LayerPart&, const Flow&, const LayerSaved&, TensorId d_out);
  void qkv_forward(const LayerPart&, const Flow&, LayerSaved&);
  Sum qkv_backward(const LayerPart&, const Flow&, const LayerSaved&, std::array<TensorId, 3> d_qkv);
  DType rotated_dtype() const;
  TensorId rotate(const OperandNames& names, TensorId from, std::int64_t width, DType dtype,
                  TensorId also_read);
  TensorId rotate_backward(const OperandNames& names, TensorId d_rotated, std::int64_t width,
                           DType dtype);
  static BlockEvents rotate_backward_blocks(TensorId d_rotated, TensorId product, TensorId d,
                                            Bytes own, Bytes half, Bytes promoted);

  // GPT-2 layers (layer_gpt2.cpp).
  void gpt2_forward(const LayerPart&, Ref, Ref, const Flow&, LayerSaved&);
  void gpt2_backward(const LayerPart&, Ref, Ref, Ref, const Flow&, const LayerSaved&);
  TensorId gpt2_join(const AttentionInput&, std::array<TensorId, 3> d_qkv);
  DType gelu_dtype() const;
  void gelu_forward(bool grad, LayerSaved& saved);
  TensorId gelu_backward(const LayerSaved& saved, TensorId d);

  // The frame's, where this is a checkpoint's first layer.
  std::span<const Ref> frame() const {
    return checkpointed_ && first_ ? std::span<const Ref>(held_) : std::span<const Ref>();
  }

  Arguments held_{};
  bool first_ = true;
  bool stops_early_ = false;
  TensorId cos_ = kNoTensor, sin_ = kNoTensor;
};

}  // namespace plimsoll::planner::pytorch
