// Activations that are written in Python.
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

}  // namespace plimsoll::planner::pytorch
