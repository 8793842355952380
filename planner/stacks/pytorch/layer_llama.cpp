// Llama-like layers: RMSNorm, grouped-query attention with rotary embedding, SwiGLU.
#include "planner/stacks/pytorch/layer_writer.h"

namespace plimsoll::planner::pytorch {

using models::module_names;

namespace {
constexpr const ModuleNames& kInputNorm = module_names<"input_layernorm">;
constexpr const ModuleNames& kPostNorm = module_names<"post_attention_layernorm">;
constexpr const ModuleNames& kQ = module_names<"self_attn.q_proj">;
constexpr const ModuleNames& kK = module_names<"self_attn.k_proj">;
constexpr const ModuleNames& kV = module_names<"self_attn.v_proj">;
constexpr const ModuleNames& kO = module_names<"self_attn.o_proj">;
constexpr const ModuleNames& kQNorm = module_names<"self_attn.q_norm">;
constexpr const ModuleNames& kKNorm = module_names<"self_attn.k_norm">;
constexpr const ModuleNames& kGate = module_names<"mlp.gate_proj">;
constexpr const ModuleNames& kUp = module_names<"mlp.up_proj">;
constexpr const ModuleNames& kDown = module_names<"mlp.down_proj">;
}  // namespace

void LayerWriter::forward(const LayerPart& layer, Ref input, Ref output, bool input_grad,
                          LayerSaved& saved) {
  if (d_.fused_qkv)
    gpt2_forward(layer, input, output, input_grad, saved);
  else
    llama_forward(layer, input, output, input_grad, saved);
}

void LayerWriter::backward(const LayerPart& layer, Ref input, Ref d_output, Ref d_input,
                           bool input_grad, const LayerSaved& saved) {
  if (d_.fused_qkv)
    gpt2_backward(layer, input, d_output, d_input, input_grad, saved);
  else
    llama_backward(layer, input, d_output, d_input, input_grad, saved);
}

// apply_rotary_pos_emb: x·cos + rotate_half(x)·sin. Tables have the stream's dtype, so under
// autocast the 16-bit x is promoted: with r = bytes of the result, c = bytes of x, the moments are
// r + c/2 + c (first product, negated half, their concatenation), r + c + r, and 3 r at the sum.
TensorId LayerWriter::rotate(const char* name, TensorId from, std::int64_t width) {
  const std::int64_t n = checked_multiply(tokens_.total(), width);
  const TensorId rotated = make(name, n, regime_.residual);
  const Bytes r = bytes(n, regime_.residual), c = low(n), half = low(n / 2);
  const Bytes most = std::max({r + half + c, r + c + r, r + r + r});
  op(name).read(from).read(cos_).read(sin_).write(rotated).scratch(most - r);
  return rotated;
}

// Its gradient: d·sin, negated half, two slice_backward of full size, their sum; d·cos; the sum.
// Same dtype: four live beside d at the highest moment less one: 3 n. Promoted: d arrives in fp32
// and each product is cast down: 4 + 2 + 2 bytes beside d.
TensorId LayerWriter::rotate_backward(const char* name, TensorId d_rotated, std::int64_t width) {
  const std::int64_t n = checked_multiply(tokens_.total(), width);
  const TensorId d = temporary(name, n, regime_.compute);
  const Bytes r = bytes(n, regime_.residual), c = low(n);
  const Bytes most = r == c ? c * 3 : r + c + c;
  op(name).read(d_rotated).read(cos_).read(sin_).write(d).scratch(most - c);
  return d;
}

void LayerWriter::qkv_forward(const LayerPart& layer, bool input_grad, LayerSaved& s) {
  const std::int64_t t = tokens_.total();
  const DType stream = regime_.residual;
  const Ref x{s.input_norm.out};
  const bool grad = input_grad || layer.input_norm.trains();
  const auto project = [&](const ModuleNames& names, const LinearPart& part, LinearSaved& saved) {
    linear_forward(names, part, x, stream, grad, Category::activations, saved);
  };
  const auto head_norm = [&](const ModuleNames& names, const NormPart& part, TensorId from,
                             std::int64_t heads, NormSaved& saved) {
    if (part.width == 0) return from;
    norm_forward(names, part, {from}, t * heads, d_.head_dim, true, saved);
    return saved.out;
  };
  project(kQ, layer.q, s.q);
  const TensorId q = head_norm(kQNorm, layer.q_norm, s.q.out, d_.heads, s.q_norm);
  project(kK, layer.k, s.k);
  const TensorId k = head_norm(kKNorm, layer.k_norm, s.k.out, d_.kv_heads, s.k_norm);
  project(kV, layer.v, s.v);
  s.q_rotated = rotate("self_attn.q_rotated", q, d_.q_width());
  s.k_rotated = rotate("self_attn.k_rotated", k, d_.kv_width());
  op("self_attn.rotary").release(q).release(k);
}

void LayerWriter::llama_mlp_forward(const LayerPart& layer, LayerSaved& s) {
  const std::int64_t n = checked_multiply(tokens_.total(), d_.ffn);
  const Ref x{s.post_norm.out};
  linear_forward(kGate, layer.gate, x, regime_.residual, true, Category::activations, s.gate);
  s.activated = make("mlp.act", n, regime_.compute);
  op("mlp.act").read(s.gate.out).write(s.activated);
  linear_forward(kUp, layer.up, x, regime_.residual, true, Category::activations, s.up);
  s.product = make("mlp.product", n, regime_.compute);
  op("mlp.product").read(s.activated).read(s.up.out).write(s.product);
  if (phase_ == Phase::recompute && stops_early_) {  // nothing after it is saved
    s.down = {};
    s.down.input = s.product;
    return;
  }
  linear_forward(kDown, layer.down, {s.product}, regime_.compute, true, Category::activations,
                 s.down);
}

void LayerWriter::llama_forward(const LayerPart& layer, Ref input, Ref output, bool input_grad,
                                LayerSaved& s) {
  const std::int64_t t = tokens_.total();
  norm_forward(kInputNorm, layer.input_norm, input, t, d_.hidden, input_grad, s.input_norm);
  qkv_forward(layer, input_grad, s);
  attention_forward(s, s.q_rotated, s.k_rotated, s.v.out, true);
  linear_forward(kO, layer.o, {s.attention}, regime_.compute, true, Category::activations, s.o);
  // Python holds q, k, v and the norm's result until self_attn returns.
  op("self_attn")
      .release(s.q_rotated)
      .release(s.k_rotated)
      .release(s.v.out)
      .release(s.input_norm.out);
  s.middle = make("self_attn.residual", t * d_.hidden, regime_.residual);
  auto add = op("self_attn.residual");
  read(add, input).read(s.o.out).write(s.middle);
  norm_forward(kPostNorm, layer.post_norm, {s.middle}, t, d_.hidden, true, s.post_norm);
  llama_mlp_forward(layer, s);
  if (phase_ == Phase::recompute && stops_early_) return;
  op("mlp").release(s.post_norm.out);
  auto last = op("mlp.residual");
  last.read(s.middle).read(s.down.out);
  write(last, output);
  last.touch(input.tensor, input.delta, input.beyond, models::Access::release);
}

TensorId LayerWriter::add_gradients(const char* name, TensorId a, TensorId b, DType dtype,
                                    std::int64_t values) {
  if (a == kNoTensor) return b;
  if (b == kNoTensor) return a;
  const TensorId sum = temporary(name, values, dtype);
  op(name).read(a).read(b).write(sum);
  return sum;
}

TensorId LayerWriter::llama_mlp_backward(const LayerPart& layer, const LayerSaved& s,
                                         TensorId d_out, bool grad) {
  const std::int64_t n = checked_multiply(tokens_.total(), d_.ffn);
  const TensorId d_product =
      linear_backward(kDown, layer.down, regime_.compute, true, s.down, d_out);
  const TensorId d_act = temporary("mlp.act.grad", n, regime_.compute);
  const TensorId d_up = temporary("mlp.up_proj.out.grad", n, regime_.compute);
  op("mlp.product").read(d_product).read(s.up.out).read(s.activated).write(d_act).write(d_up);
  const TensorId dx_up = linear_backward(kUp, layer.up, regime_.residual, grad, s.up, d_up);
  const TensorId d_gate = temporary("mlp.gate_proj.out.grad", n, regime_.compute);
  op("mlp.act").read(d_act).read(s.gate.out).write(d_gate);
  const TensorId dx_gate =
      linear_backward(kGate, layer.gate, regime_.residual, grad, s.gate, d_gate);
  return add_gradients("mlp.input.grad", dx_up, dx_gate, regime_.residual,
                       tokens_.total() * d_.hidden);
}

TensorId LayerWriter::qkv_backward(const LayerPart& layer, bool grad, const LayerSaved& s,
                                   std::array<TensorId, 3> d_qkv) {
  const std::int64_t t = tokens_.total();
  const DType stream = regime_.residual;
  const std::int64_t n = t * d_.hidden;
  TensorId dk = rotate_backward("self_attn.k.grad", d_qkv[1], d_.kv_width());
  TensorId dq = rotate_backward("self_attn.q.grad", d_qkv[0], d_.q_width());
  TensorId dx = linear_backward(kV, layer.v, stream, grad, s.v, d_qkv[2]);
  // The gradient of a transposed view is laid out anew before the product reads it.
  const auto laid_out = [&](const ModuleNames& names, TensorId d, std::int64_t width) {
    const TensorId copy = temporary(names.grad_layout, t * width, regime_.compute);
    op(names.grad_layout).read(d).write(copy);
    return copy;
  };
  const auto through_norm = [&](const ModuleNames& names, const NormPart& part, TensorId d,
                                const LinearSaved& from, const NormSaved& saved,
                                std::int64_t heads) {
    if (part.width == 0) return d;
    return norm_backward(names, part, {from.out}, t * heads, d_.head_dim, true, saved, d);
  };
  dk = through_norm(kKNorm, layer.k_norm, laid_out(kK, dk, d_.kv_width()), s.k, s.k_norm,
                    d_.kv_heads);
  dx = add_gradients("self_attn.input.grad.vk", dx,
                     linear_backward(kK, layer.k, stream, grad, s.k, dk), stream, n);
  dq = through_norm(kQNorm, layer.q_norm, laid_out(kQ, dq, d_.q_width()), s.q, s.q_norm, d_.heads);
  return add_gradients("self_attn.input.grad", dx,
                       linear_backward(kQ, layer.q, stream, grad, s.q, dq), stream, n);
}

void LayerWriter::llama_backward(const LayerPart& layer, Ref input, Ref d_output, Ref d_input,
                                 bool input_grad, const LayerSaved& s) {
  const std::int64_t t = tokens_.total(), n = t * d_.hidden;
  const TensorId d_out = d_output.tensor;
  // Under autocast the 16-bit branch's gradient is a cast of the fp32 stream's.
  const auto branch = [&](const char* name, TensorId d) {
    if (!regime_.autocast()) return d;
    const TensorId cast = temporary(name, n, regime_.compute);
    op(name).read(d).write(cast);
    return cast;
  };
  TensorId d = llama_mlp_backward(layer, s, branch("mlp.out.grad", d_out), true);
  d = norm_backward(kPostNorm, layer.post_norm, {s.middle}, t, d_.hidden, true, s.post_norm, d);
  const TensorId d_middle = add_gradients("self_attn.residual.grad", d_out, d, regime_.residual, n);
  const TensorId d_attention = linear_backward(kO, layer.o, regime_.compute, true, s.o,
                                               branch("self_attn.out.grad", d_middle));
  const auto d_qkv = attention_backward(s, s.q_rotated, s.k_rotated, s.v.out, d_attention);
  const bool grad = input_grad || layer.input_norm.trains();
  d = qkv_backward(layer, grad, s, d_qkv);
  if (!grad) {
    op("input_layernorm").release(d_middle);
    return;
  }
  const TensorId d_norm =
      norm_backward(kInputNorm, layer.input_norm, input, t, d_.hidden, input_grad, s.input_norm, d);
  release_held();
  auto add = op("layer.input.grad");
  add.read(d_middle).read(d_norm);
  if (input_grad) write(add, d_input);
}

}  // namespace plimsoll::planner::pytorch
