// GPT-2 layers: LayerNorm, fused QKV, GELU, dropout.
#include "planner/stacks/pytorch/layer_writer.h"

namespace plimsoll::planner::pytorch {

using models::module_names;

namespace {
constexpr const ModuleNames& kLn1 = module_names<"ln_1">;
constexpr const ModuleNames& kLn2 = module_names<"ln_2">;
constexpr const ModuleNames& kQkv = module_names<"attn.c_attn">;
constexpr const ModuleNames& kProj = module_names<"attn.c_proj">;
constexpr const ModuleNames& kFc = module_names<"mlp.c_fc">;
constexpr const ModuleNames& kOut = module_names<"mlp.c_proj">;
}  // namespace

// F.dropout in training: the mask is saved, the input dies. p = 0 returns its input.
TensorId LayerWriter::dropout(const char* name, const char* mask_name, double p, TensorId from,
                              std::int64_t values, TensorId& mask) {
  mask = kNoTensor;
  if (p == 0) return from;
  mask = b_.tensor(mask_name, dropout_mask(values, regime_.compute), Category::activations);
  const TensorId dropped = make(name, values, regime_.compute);
  op(name).read(from).write(mask).write(dropped);
  return dropped;
}

TensorId LayerWriter::dropout_backward(const char* name, TensorId d, TensorId mask,
                                       std::int64_t values) {
  if (mask == kNoTensor) return d;
  const TensorId d_in = temporary(name, values, regime_.compute);
  op(name).read(d).read(mask).write(d_in);
  return d_in;
}

// NewGELUActivation, written in Python: 0.5·x·(1 + tanh(c·(x + 0.044715·x³))). Autograd keeps x,
// 0.5·x, tanh and 1 + tanh; without autograd tanh is gone when the product is made. The torch
// activations keep their input only.
void LayerWriter::gelu_forward(LayerSaved& s) {
  const std::int64_t n = checked_multiply(tokens_.total(), d_.ffn);
  s.activated = make("mlp.act", n, regime_.compute);
  auto gelu = op("mlp.act");
  gelu.read(s.up.out).write(s.activated);
  if (!d_.python_gelu) return;
  s.gelu = {make("mlp.act.half", n, regime_.compute),
            saves_ ? make("mlp.act.tanh", n, regime_.compute) : kNoTensor,
            make("mlp.act.one_plus_tanh", n, regime_.compute), kNoTensor};
  for (const TensorId t : s.gelu) gelu.write(t);
}

// Backward of the above. x (the 4·h wide input), with d arriving: d·(1 + tanh), d·0.5x | tanh's
// gradient, ·c | two terms of x + 0.044715·x³: ·0.044715, x², 3·, the product | their sum | 0.5·.
// Highest: the incoming path, the branch, and the cube's four temporaries.
TensorId LayerWriter::gelu_backward(const LayerSaved& s, TensorId d) {
  const std::int64_t n = checked_multiply(tokens_.total(), d_.ffn);
  const TensorId d_in = temporary("mlp.act.grad", n, regime_.compute);
  if (!d_.python_gelu) {
    op("mlp.act").read(d).read(s.up.out).write(d_in);
    return d_in;
  }
  const TensorId d_half = temporary("mlp.act.half.grad", n, regime_.compute);
  const TensorId d_tanh = temporary("mlp.act.tanh.grad", n, regime_.compute);
  op("mlp.act.product").read(d).read(s.gelu[0]).read(s.gelu[2]).write(d_half).write(d_tanh);
  const TensorId d_inner = temporary("mlp.act.inner.grad", n, regime_.compute);
  op("mlp.act.tanh").read(d_tanh).read(s.gelu[1]).write(d_inner);
  // ·c makes a new tensor and frees the old; then ·0.044715, x², 3x², their product.
  op("mlp.act.inner").read(d_inner).read(s.up.out).read(d_half).write(d_in).scratch(low(n) * 3);
  return d_in;
}

void LayerWriter::gpt2_forward(const LayerPart& layer, Ref input, Ref output, bool input_grad,
                               LayerSaved& s) {
  const std::int64_t t = tokens_.total(), n = t * d_.hidden;
  const DType stream = regime_.residual;
  norm_forward(kLn1, layer.input_norm, input, t, d_.hidden, input_grad, s.input_norm);
  linear_forward(kQkv, layer.q, {s.input_norm.out}, stream, true, Category::activations, s.q);
  attention_forward(s, s.q.out, kNoTensor, kNoTensor, true);
  linear_forward(kProj, layer.o, {s.attention}, regime_.compute, true, Category::activations, s.o);
  const TensorId branch = dropout("attn.resid_dropout", "attn.resid_dropout.mask",
                                  d_.residual_dropout, s.o.out, n, s.residual_mask);
  op("attn").release(s.q.out);
  s.middle = make("attn.residual", n, stream);
  auto add = op("attn.residual");
  read(add, input).read(branch).release(s.input_norm.out).write(s.middle);
  norm_forward(kLn2, layer.post_norm, {s.middle}, t, d_.hidden, true, s.post_norm);
  linear_forward(kFc, layer.up, {s.post_norm.out}, stream, true, Category::activations, s.up);
  gelu_forward(s);
  if (phase_ == Phase::recompute && stops_early_ && d_.residual_dropout == 0) {
    s.down = {};
    s.down.input = s.activated;
    return;
  }
  linear_forward(kOut, layer.down, {s.activated}, regime_.compute, true, Category::activations,
                 s.down);
  const TensorId mlp =
      dropout("mlp.dropout", "mlp.dropout.mask", d_.residual_dropout, s.down.out, n, s.mlp_mask);
  auto last = op("mlp.residual");
  last.read(s.middle).read(mlp).release(branch).release(s.post_norm.out);
  write(last, output);
  last.touch(input.tensor, input.delta, input.beyond, models::Access::release);
}

void LayerWriter::gpt2_backward(const LayerPart& layer, Ref input, Ref d_output, Ref d_input,
                                bool input_grad, const LayerSaved& s) {
  const std::int64_t t = tokens_.total(), n = t * d_.hidden;
  const DType stream = regime_.residual;
  const TensorId d_out = d_output.tensor;
  const auto branch = [&](const char* name, TensorId d) {
    if (!regime_.autocast()) return d;
    const TensorId cast = temporary(name, n, regime_.compute);
    op(name).read(d).write(cast);
    return cast;
  };
  TensorId d = dropout_backward("mlp.dropout.grad", branch("mlp.out.grad", d_out), s.mlp_mask, n);
  d = linear_backward(kOut, layer.down, regime_.compute, true, s.down, d);
  d = gelu_backward(s, d);
  d = linear_backward(kFc, layer.up, stream, true, s.up, d);
  d = norm_backward(kLn2, layer.post_norm, {s.middle}, t, d_.hidden, true, s.post_norm, d);
  const TensorId d_middle = add_gradients("attn.residual.grad", d_out, d, stream, n);
  d = dropout_backward("attn.resid_dropout.grad", branch("attn.out.grad", d_middle),
                       s.residual_mask, n);
  d = linear_backward(kProj, layer.o, regime_.compute, true, s.o, d);
  const auto d_qkv = attention_backward(s, s.q.out, kNoTensor, kNoTensor, d);
  // The three gradients are laid out anew and concatenated (SplitBackward).
  const TensorId joined = temporary("attn.qkv.grad", 3 * n, regime_.compute);
  op("attn.qkv.grad").read(d_qkv[0]).read(d_qkv[1]).read(d_qkv[2]).write(joined);
  const bool grad = input_grad || layer.input_norm.trains();
  d = linear_backward(kQkv, layer.q, stream, grad, s.q, joined);
  if (!grad) {
    op("ln_1").release(d_middle);
    return;
  }
  const TensorId d_norm =
      norm_backward(kLn1, layer.input_norm, input, t, d_.hidden, input_grad, s.input_norm, d);
  release_held();
  auto add = op("layer.input.grad");
  add.read(d_middle).read(d_norm);
  if (input_grad) write(add, d_input);
}

}  // namespace plimsoll::planner::pytorch
