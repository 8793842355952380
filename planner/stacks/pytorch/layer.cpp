// What Llama-like and GPT-2 layers have in common.
#include "planner/stacks/pytorch/layer_writer.h"

namespace plimsoll::planner::pytorch {

void LayerWriter::forward(const LayerPart& layer, Ref input, Ref output, bool input_grad,
                          LayerSaved& saved) {
  const Flow flow = flow_of(layer, input_grad);
  if (d_.fused_qkv)
    gpt2_forward(layer, input, output, flow, saved);
  else
    llama_forward(layer, input, output, flow, saved);
}

void LayerWriter::backward(const LayerPart& layer, Ref input, Ref d_output, Ref d_input,
                           bool input_grad, const LayerSaved& saved) {
  const Flow flow = flow_of(layer, input_grad);
  if (d_.fused_qkv)
    gpt2_backward(layer, input, d_output, d_input, flow, saved);
  else
    llama_backward(layer, input, d_output, d_input, flow, saved);
}

// A result requires a gradient where an operand does. GPT-2's fused projection stands in q.
LayerWriter::Flow LayerWriter::flow_of(const LayerPart& layer, bool input_grad) {
  Flow f;
  f.input = input_grad;
  f.x = input_grad || layer.input_norm.trains();
  f.q = f.x || layer.q.trains() || layer.q_norm.trains();
  f.k = f.x || layer.k.trains() || layer.k_norm.trains();
  f.v = f.x || layer.v.trains();
  f.attention = f.q || (layer.k.in > 0 && (f.k || f.v));
  f.middle = input_grad || f.attention || layer.o.trains();
  f.y = f.middle || layer.post_norm.trains();
  f.gate = layer.gate.in > 0 && (f.y || layer.gate.trains());
  f.up = f.y || layer.up.trains();
  f.product = f.gate || f.up;
  f.output = f.middle || f.product || layer.down.trains();
  return f;
}

AttentionInput LayerWriter::attention_input(const Flow& f, const LayerSaved& s) const {
  if (d_.fused_qkv) return {s.q.out, s.q.out, s.q.out, linear_out(), f.q, f.q, f.q};
  return {s.q_rotated, s.k_rotated, s.v.out, rotated_dtype(), f.q, f.k, f.v};
}

std::array<TensorId, 3> LayerWriter::core_attention_backward(const AttentionNames& names,
                                                             const AttentionInput& in,
                                                             const LayerSaved& s, TensorId d_out) {
  const std::array<Ref, 5> held{{{in.q}, {in.k}, {in.v}, held_[kHeldMask], held_[kHeldPositions]}};
  return attention_backward(names, in, s.attention, d_out,
                            selective() ? std::span<const Ref>(held) : std::span<const Ref>());
}

}  // namespace plimsoll::planner::pytorch
