// Activations that are written in Python.
#include "planner/kernels_of_op.h"
#include "planner/stacks/pytorch/block_writer.h"

namespace plimsoll::planner::pytorch {

// NewGELUActivation, written in Python: 0.5·x·(1 + tanh(c·(x + 0.044715·x³))). Autograd keeps x
// (and under autocast its fp32 copy, which pow read, in x's place), 0.5·x, tanh and 1 + tanh. pow,
// ·0.044715, + x, ·c and tanh replace one another, two at a time, beside 0.5·x and what is saved;
// then come 1 + tanh and the product: the highest moment is the last, without anything else.
TensorId BlockWriter::gelu_forward(const NodePlan& at, const Elementwise& of, TensorId x,
                                   bool keeps, ActivationSaved& s) {
  const GeluNames& names = gelu_names(at.node->name);
  const TensorId out = make(of.name, of.values, of.out);
  s[0] = make(names.half, of.values, of.in);
  s[2] = make(names.one_plus_tanh, of.values, of.out);
  if (keeps) s[1] = make(names.tanh, of.values, of.out);
  if (keeps && of.out != of.in) s[3] = make(names.input_fp32, of.values, of.out);
  auto gelu = op(of.name).read(x).write(out);
  for (const TensorId t : s) gelu.write(t);
  return out;
}

// Backward of the above: d·(1 + tanh) → 0.5·x's, cast to x's dtype (in a checkpoint what was saved
// is gone by then); d·0.5x → tanh's; tanh's own; ·c;
// then the two terms of x + 0.044715·x³. While the cube's is made, ·0.044715, x², 3·x² and their
// product stand beside the saved x and the first term: four of the inner dtype, where the operands
// count one (d). They are cast, added, and the half's branch, ·0.5, comes last.
TensorId BlockWriter::gelu_backward(const NodePlan& at, const Elementwise& of, TensorId x,
                                    const ActivationSaved& s, TensorId d) {
  const GeluNames& names = gelu_names(at.node->name);
  const std::int64_t n = of.values;
  const DType low = of.in, dtype = of.out;
  const TensorId d_in = temporary(at.names->grad, n, low);
  const bool casts = dtype != low;
  const TensorId d_half = temporary(names.half_grad, n, low);
  const TensorId d_tanh = temporary(names.tanh_grad, n, dtype);
  op(names.product)
      .read(d)
      .read(s[0])
      .read(s[2])
      .write(d_half)
      .write(d_tanh)
      .scratch(casts ? bytes(n, dtype) - (checkpointed_ ? bytes(n, low) : Bytes(0)) : Bytes(0));
  const TensorId d_inner = temporary(names.inner_grad, n, dtype);
  op(names.tanh).read(d_tanh).read(s[1]).write(d_inner);
  const TensorId d_x = temporary(names.input_grad, n, low);
  op(names.inner).read(d_inner).read(casts ? s[3] : x).write(d_x).scratch(bytes(n, dtype) * 3);
  op(names.half).read(d_half).read(d_x).write(d_in);
  return d_in;
}

// transformers models/bloom/modeling_bloom.py, bloom_gelu_forward, in an autograd.Function that
// saves x alone: x·0.5 · (1 + tanh(0.79788456·x · (1 + 0.044715·x·x))).
TensorId BlockWriter::gelu_function_forward(const Elementwise& of, TensorId x) {
  const TensorId out = make(of.name, of.values, of.out);
  auto gelu = op(of.name).read(x).write(out);
  const Bytes n = bytes(of.values, of.out);
  KernelsOfOp kernels(b_);
  const auto half = kernels.take(n), scaled = kernels.take(n), cubic = kernels.take(n);
  const auto square = kernels.take(n);
  kernels.drop(cubic);
  const auto one_plus = kernels.take(n);
  kernels.drop(square);
  const auto inner = kernels.take(n);
  kernels.drop(scaled);
  kernels.drop(one_plus);
  const auto tanh = kernels.take(n);
  kernels.drop(inner);
  const auto one_plus_tanh = kernels.take(n);
  kernels.drop(tanh);
  kernels.birth(out, n);
  kernels.drop(half);
  kernels.drop(one_plus_tanh);
  kernels.finish(gelu);
  return out;
}

// bloom_gelu_back: tanh anew; then 0.5·x · ((1 - tanh²) · (0.79788456 + 0.1070322243·x·x))
// + 0.5·(1 + tanh), times the gradient. tanh keeps its name to the end.
TensorId BlockWriter::gelu_function_backward(const NodePlan& at, const Elementwise& of, TensorId x,
                                             TensorId d) {
  unpack();
  const TensorId d_in = temporary(at.names->grad, of.values, of.in);
  auto gelu = op(of.name).read(d).read(x).write(d_in);
  const Bytes n = bytes(of.values, of.in);
  KernelsOfOp kernels(b_);
  // A block made of others, which go then.
  const auto made = [&](std::initializer_list<std::int32_t> of_others) {
    const std::int32_t block = kernels.take(n);
    for (const std::int32_t other : of_others) kernels.drop(other);
    return block;
  };
  const auto scaled = made({}), cubic = made({}), square = made({cubic});
  const auto inner = made({scaled, made({square})});
  const auto tanh = made({inner}), half = made({});
  const auto slope = made({made({})});
  const auto curve = made({made({made({})})});
  const auto steep = made({half, made({slope, curve})});
  const auto flat = made({made({})});
  const auto sum = made({steep, flat});
  kernels.birth(d_in, n);
  kernels.drop(tanh);
  kernels.drop(sum);
  kernels.finish(gelu);
  return d_in;
}

}  // namespace plimsoll::planner::pytorch
