// Counted from the modules' own operations: transformers/models/llama/modeling_llama.py and
// gpt2/modeling_gpt2.py, and for fused kernels one read of each input and one write of each output.
// r is the width of the residual stream, c that of products.
#include "planner/time/row_traffic.h"

namespace plimsoll::planner {

namespace {

// Bytes for an element of the normalized row, forward.
double norm_bytes(const LayerCost& layer, const Execution& e) {
  const double r = e.residual;
  if (e.fused || !layer.rms_norm) return 2 * r;  // LayerNorm is one kernel
  // LlamaRMSNorm: pow 8, mean 4, times rsqrt 8, times weight 2r; to fp32 and back where r is 2.
  return 20 + 2 * r + (r < 4 ? 2 * (r + 4) : 0);
}

// The activation between the MLP's products, for one of its elements.
RowTraffic activation_bytes(const LayerCost& layer, const Execution& e) {
  const double c = e.low;
  if (layer.swiglu)  // silu 2c, product 3c; backward: silu 3c, product 5c
    return e.fused ? RowTraffic{3 * c, 5 * c} : RowTraffic{5 * c, 8 * c};
  if (layer.python_gelu && !e.fused) {
    // NewGELUActivation: pow 2w, product 2w, sum c + 2w, product, tanh and 1 + 2w each, half of x
    // 2c, product c + 2w; backward twice that. Autocast runs pow in fp32, and what is computed from
    // it is promoted (torch, autocast_mode.h, AT_FORALL_FP32).
    const double w = e.promotes ? 4 : c, cast = e.promotes ? c + 4 : 0;
    return {14 * w + 4 * c + cast, 2 * (14 * w + 4 * c) + cast};
  }
  return {2 * c, 3 * c};
}

}  // namespace

RowTraffic layer_traffic(const LayerCost& layer, const Execution& e) {
  const double r = e.residual, c = e.low;
  const double norm = norm_bytes(layer, e);
  const double add = 2 * r + c;  // of a block's output to the stream
  const double heads = layer.q_width + layer.kv_width;
  // apply_rotary_pos_emb: two products 6c, rotate_half 3c with its concatenation, sum 3c; where it
  // turns a part of each head, that is joined with the rest, 2c.
  const double join = layer.rotated < 1 ? 2 : 0;
  const double rope = layer.rope ? (e.fused ? 2 : 12 * layer.rotated + join) * c * heads : 0;
  const RowTraffic activation = activation_bytes(layer, e);
  RowTraffic bytes;
  bytes.forward = 2 * (norm + add) * layer.hidden + rope + activation.forward * layer.ffn;
  if (layer.qk_norm) bytes.forward += norm * heads;
  // A norm's backward reads the row's gradient and value twice (row, then column sums) and writes
  // one; eager ones run about two kernels for each of the forward's. Sums of gradients: 3r.
  bytes.backward = 2 * ((e.fused || !layer.rms_norm ? 2.5 : 2) * norm + 3 * r + c) * layer.hidden +
                   rope + activation.backward * layer.ffn;
  if (layer.qk_norm) bytes.backward += 2 * norm * heads;
  return bytes;
}

// peft/tuners/lora/layer.py: x to the adapters' dtype, dropout, A, B, scaling, sum.
RowTraffic adapter_traffic(const ProductShape& p, const Execution& e) {
  if (p.rank <= 0) return {};
  const double c = e.low, a = e.adapters_cast ? 4 : c;
  const double cast = e.adapters_cast ? c + a : 0;
  const double dropout = e.adapter_dropout > 0 ? 2 * a + 1 : 0;
  RowTraffic bytes;
  bytes.forward = (cast + dropout) * p.in + (2 * a + (a + 2 * c)) * p.out;
  bytes.backward = (cast + dropout + 3 * c) * p.in + (2 * a + cast) * p.out;
  return bytes;
}

RowTraffic loss_traffic(double vocab, const Execution& e) {
  const double c = e.low;
  // Our own and Liger's kernel: read once or twice, overwritten by the gradient.
  if (e.own) return {2 * c * vocab, 0};
  if (e.loss == models::Loss::fused) return {3 * c * vocab, 0};
  if (e.compiled) return {2 * c * vocab, 2 * c * vocab};
  // ForCausalLMLoss: to fp32, log_softmax 8; backward: fill 4, log_softmax 12, to the dtype.
  // torchtune's chunks are the same, one after another.
  const double cast = c < 4 ? c + 4 : 0;
  return {(cast + 8) * vocab, (4 + 12 + cast) * vocab};
}

double layer_kernels(const LayerCost& layer, const Execution& e) {
  const double products = static_cast<double>(layer.products.size());
  if (e.fused) return products + 8;
  // Norms of 6 operations or 1, rotation 10, views and layout 8, attention, activation, sums.
  return products * (e.casts ? 2 : 1) + (layer.rms_norm ? 12 : 2) + (layer.rope ? 10 : 0) +
         (layer.python_gelu ? 7 : 0) + 14;
}

}  // namespace plimsoll::planner
