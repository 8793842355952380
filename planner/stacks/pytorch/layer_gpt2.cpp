// GPT-2 layers: LayerNorm, fused QKV, GELU, dropout.
#include "planner/stacks/pytorch/layer_writer.h"

namespace plimsoll::planner::pytorch {

using models::module_names;

namespace {
constexpr const ModuleNames& kLn1 = module_names<"ln_1">;
constexpr const ModuleNames& kLn2 = module_names<"ln_2">;
constexpr const LinearNames& kQkv = linear_names<"attn.c_attn">;
constexpr const LinearNames& kProj = linear_names<"attn.c_proj">;
constexpr const LinearNames& kFc = linear_names<"mlp.c_fc">;
constexpr const LinearNames& kOut = linear_names<"mlp.c_proj">;
constexpr const AttentionNames& kAttention = attention_names<"attn">;
constexpr Category kKept = Category::activations;
}  // namespace

// Autocast runs pow in fp32, and what is computed from it is promoted.
DType LayerWriter::gelu_dtype() const {
  return d_.python_gelu && regime_.autocast ? DType::fp32 : linear_out();
}

// NewGELUActivation, written in Python: 0.5·x·(1 + tanh(c·(x + 0.044715·x³))). Autograd keeps x
// (and under autocast its fp32 copy, which pow read, in x's place), 0.5·x, tanh and 1 + tanh. pow,
// ·0.044715, + x, ·c and tanh replace one another, two at a time, beside 0.5·x and what is saved;
// then come 1 + tanh and the product: the highest moment is the last, without anything else.
// The torch activations keep their input only, ReLU its result (derivatives.yaml,
// threshold_backward), which the product after it keeps as well.
void LayerWriter::gelu_forward(bool grad, LayerSaved& s) {
  const std::int64_t n = checked_multiply(tokens_.total(), d_.ffn);
  const DType low = linear_out(), dtype = gelu_dtype();
  s.activated = make("mlp.act", n, dtype);
  auto gelu = op("mlp.act");
  gelu.read(s.up.out).write(s.activated);
  if (!d_.python_gelu) return;
  const bool keeps = saves_ && grad;
  s.gelu[0] = make("mlp.act.half", n, low);
  s.gelu[2] = make("mlp.act.one_plus_tanh", n, dtype);
  if (keeps) s.gelu[1] = make("mlp.act.tanh", n, dtype);
  if (keeps && dtype != low) s.gelu[3] = make("mlp.act.input.fp32", n, dtype);
  for (const TensorId t : s.gelu) gelu.write(t);
}

// Backward of the above: d·(1 + tanh) → 0.5·x's, cast to x's dtype (in a checkpoint what was saved
// is gone by then); d·0.5x → tanh's; tanh's own; ·c;
// then the two terms of x + 0.044715·x³. While the cube's is made, ·0.044715, x², 3·x² and their
// product stand beside the saved x and the first term: four of the inner dtype, where the operands
// count one (d). They are cast, added, and the half's branch, ·0.5, comes last.
TensorId LayerWriter::gelu_backward(const LayerSaved& s, TensorId d) {
  const std::int64_t n = checked_multiply(tokens_.total(), d_.ffn);
  const DType low = linear_out(), dtype = gelu_dtype();
  const TensorId d_in = temporary("mlp.act.grad", n, low);
  if (!d_.python_gelu) {
    const bool relu = d_.mlp == models::MlpKind::relu;
    op("mlp.act").read(d).read(relu ? s.activated : s.up.out).write(d_in);
    return d_in;
  }
  const bool casts = dtype != low;
  const TensorId d_half = temporary("mlp.act.half.grad", n, low);
  const TensorId d_tanh = temporary("mlp.act.tanh.grad", n, dtype);
  op("mlp.act.product")
      .read(d)
      .read(s.gelu[0])
      .read(s.gelu[2])
      .write(d_half)
      .write(d_tanh)
      .scratch(casts ? bytes(n, dtype) - (checkpointed_ ? bytes(n, low) : Bytes(0)) : Bytes(0));
  const TensorId d_inner = temporary("mlp.act.inner.grad", n, dtype);
  op("mlp.act.tanh").read(d_tanh).read(s.gelu[1]).write(d_inner);
  const TensorId d_x = temporary("mlp.act.input.grad", n, low);
  op("mlp.act.inner")
      .read(d_inner)
      .read(casts ? s.gelu[3] : s.up.out)
      .write(d_x)
      .scratch(bytes(n, dtype) * 3);
  op("mlp.act.half").read(d_half).read(d_x).write(d_in);
  return d_in;
}

void LayerWriter::gpt2_forward(const LayerPart& layer, Ref input, Ref output, const Flow& f,
                               LayerSaved& s) {
  const std::int64_t t = tokens_.total(), n = stream_values();
  const DType stream = regime_.residual, normed = norm_out(stream), low = linear_out();
  norm_forward(kLn1, layer.input_norm, input, stream, t, d_.hidden, f.input, s.input_norm);
  linear_forward(kQkv, layer.q, {s.input_norm.out}, normed, f.x, kKept, s.q);
  attention_forward(kAttention, attention_input(f, s), s.attention);
  linear_forward(kProj, layer.o, {s.attention.out}, low, f.attention, kKept, s.o);
  const TensorId branch = dropout("attn.resid_dropout", "attn.resid_dropout.mask",
                                  d_.residual_dropout, s.o.out, n, low, s.residual_mask);
  op(kAttention.module).release(s.q.out);
  s.middle = make("attn.residual", n, stream);
  auto add = op("attn.residual");
  read(add, input).read(branch).release(s.input_norm.out).write(s.middle);
  norm_forward(kLn2, layer.post_norm, {s.middle}, stream, t, d_.hidden, f.middle, s.post_norm);
  linear_forward(kFc, layer.up, {s.post_norm.out}, normed, f.y, kKept, s.up);
  gelu_forward(f.up, s);
  // Dropout's mask is saved after the product; without it the product's operands are the last.
  linear_forward(kOut, layer.down, {s.activated}, gelu_dtype(), f.product, kKept, s.down,
                 stops() && d_.residual_dropout == 0);
  const TensorId mlp = dropout("mlp.dropout", "mlp.dropout.mask", d_.residual_dropout, s.down.out,
                               n, low, s.mlp_mask);
  auto last = op(stops() ? "checkpoint.stop" : "mlp.residual");
  last.read(s.middle).read(mlp).release(branch).release(s.post_norm.out);
  last.release(s.attention.weights);
  last.touch(input.tensor, input.delta, input.beyond, models::Access::release);
  if (!stops()) write(last, output);
}

// Flash and the memory-efficient kernel write gradients that can be joined as they are
// (SplitBackward concatenates); the products' q and v are laid out anew first.
TensorId LayerWriter::gpt2_join(const AttentionInput& in, std::array<TensorId, 3> d) {
  const DType dtype = in.dtype;
  if (path() == AttentionPath::eager || path() == AttentionPath::math) {
    d[0] = copy(kAttention.q.grad_laid_out, d[0], q_values(), dtype);
    d[2] = copy(kAttention.v.grad_laid_out, d[2], q_values(), dtype);
  }
  const TensorId joined = temporary(kAttention.joined_grad, 3 * q_values(), dtype);
  op(kAttention.joined_grad).read(d[0]).read(d[1]).read(d[2]).write(joined);
  return joined;
}

void LayerWriter::gpt2_backward(const LayerPart& layer, Ref input, Ref d_output, Ref d_input,
                                const Flow& f, const LayerSaved& s) {
  const std::int64_t t = tokens_.total(), n = stream_values();
  const DType stream = regime_.residual, normed = norm_out(stream), low = linear_out();
  TensorId d_middle = d_output.tensor;
  if (f.product || layer.down.trains()) {
    TensorId d = branch("mlp.out.grad", d_output.tensor);
    if (d_.residual_dropout > 0) unpack();
    d = dropout_backward("mlp.dropout.grad", d, s.mlp_mask, n, low);
    d = linear_backward(kOut, layer.down, gelu_dtype(), f.product, s.down, d).tensor;
    if (f.product)
      d = linear_backward(kFc, layer.up, normed, f.y, s.up, gelu_backward(s, d)).tensor;
    if (f.y)
      d_middle = norm_backward(kLn2, layer.post_norm, {s.middle}, stream, t, d_.hidden, f.middle,
                               s.post_norm, d, d_output.tensor);
  }
  if (!f.attention && !layer.o.trains()) return;
  TensorId d = dropout_backward("attn.resid_dropout.grad", branch("attn.out.grad", d_middle),
                                s.residual_mask, n, low);
  d = linear_backward(kProj, layer.o, low, f.attention, s.o, d).tensor;
  if (!f.attention) return;
  const AttentionInput in = attention_input(f, s);
  d = gpt2_join(in, core_attention_backward(kAttention, in, s, d));
  d = linear_backward(kQkv, layer.q, normed, f.x, s.q, d).tensor;
  if (!f.x) return;
  norm_backward(kLn1, layer.input_norm, input, stream, t, d_.hidden, f.input, s.input_norm, d,
                d_middle, d_input, frame());
}

}  // namespace plimsoll::planner::pytorch
