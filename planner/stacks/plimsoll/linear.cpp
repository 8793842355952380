// GEMMs with a weight, and their adapters.
#include <algorithm>

#include "planner/stacks/plimsoll/layer_writer.h"

namespace plimsoll::planner::plimsoll_stack {

// Of the op that was written last.
void LayerWriter::gemm(SymInt m, SymInt n, SymInt k, DType dtype) {
  b_.work().gemm({dtype, m.real(), n.real(), k.real()});
}

// What the adapter reads of a GEMM's input: with dropout a masked copy, else nothing but that.
TensorId LayerWriter::drop_input(const GemmOp& linear, ValueId x) {
  if (adapter_dropout_ == 0) return kNoTensor;
  const TensorId dropped = temporary(linear.names.adapter_input, about(x).width);
  OpBuilder mask = op(linear.names.adapter_dropout);
  read(mask, x);
  mask.write(dropped);
  return dropped;
}

OpBuilder LayerWriter::adapter_op(const GemmOp& linear, ValueId x, TensorId dropped) {
  OpBuilder a = op(linear.names.adapter_a);
  if (dropped == kNoTensor)
    read(a, x);
  else
    a.read(dropped);
  return a;
}

// x · A. Nothing without an adapter.
TensorId LayerWriter::adapter_a(const GemmOp& linear, ValueId x) {
  const LinearPart& part = layer_->linear(linear.module);
  if (part.lora_rank == 0) return kNoTensor;
  const TensorId dropped = drop_input(linear, x);
  const TensorId a_out = make(linear.names.adapter_a_out, part.lora_rank);
  adapter_op(linear, x, dropped).write(a_out);
  gemm(total_, part.lora_rank, part.in);
  return a_out;
}

// A packed weight is made anew while the op runs.
void LayerWriter::dequantize(const GemmOp& linear, OpBuilder& reader) {
  const LinearPart& part = layer_->linear(linear.module);
  if (part.packed == nullptr) return;
  const std::int64_t values = checked_multiply(part.in, part.out);
  const Bytes whole = storage(Count(values), regime_.compute);
  reader.write(b_.tensor(linear.names.dequantized, whole, Category::temporaries));
  // Written, and read by the GEMM; scales are few beside the codes.
  b_.work().moves(whole.real() + static_cast<double>(values * part.packed->bits) / 8);
}

// Forward -----------------------------------------------------------------------------------------

// Each writes a tensor; the adapter's part, where there is one, comes first. Without `results`
// nobody reads what the last op of a recomputation makes, but for what backward has asked for.
void LayerWriter::gemms(const LayerOp& at, bool results) {
  const ValueId x = at.in[0].value;
  for (const GemmOp& linear : at.gemms) results = results || gradients_of_->saves(linear.out);
  const GemmOp* const first8 = first_in_float8(at);
  const Float8Cast x8 = results && first8 != nullptr ? input8(*first8, x, false) : Float8Cast();
  for (const GemmOp& linear : at.gemms) {
    if (in_float8(linear)) {
      if (results) forward8(linear, x8);
      continue;
    }
    TensorId& a_out = t_->adapters[static_cast<std::size_t>(linear.module)];
    if (!results) {
      a_out = adapter_a(linear, x);
      continue;
    }
    const LinearPart& part = layer_->linear(linear.module);
    a_out = adapter_a(linear, x);
    const TensorId out = value(linear.out) = make_value(linear.out);
    if (a_out != kNoTensor) {
      op(linear.names.adapter_b).read(a_out).write(out);
      gemm(total_, part.out, part.lora_rank);
    }
    OpBuilder made = op(linear.names.gemm);
    read(made, x);
    if (a_out == kNoTensor)
      made.write(out);
    else
      made.update(out);
    dequantize(linear, made);
    gemm(total_, part.out, part.in);
  }
}

// Backward ----------------------------------------------------------------------------------------

// d(x · A), and the gradient of B. Nothing without an adapter.
TensorId LayerWriter::adapter_gradient(const GemmOp& linear) {
  const LinearPart& part = layer_->linear(linear.module);
  if (part.lora_rank == 0) return kNoTensor;
  const TensorId d_a = temporary(linear.names.adapter_a_out_grad, part.lora_rank);
  op(linear.names.adapter_b)
      .read(d(linear.out))
      .read(t_->adapters[static_cast<std::size_t>(linear.module)])
      .write(d_a)
      .update(gradients_);
  gemm(total_, part.lora_rank, part.out);
  gemm(part.lora_rank, part.out, total_);
  return d_a;
}

void LayerWriter::weight_gradient(const GemmOp& linear, ValueId x, TensorId d_a) {
  const LinearPart& part = layer_->linear(linear.module);
  if (part.train_weight || (part.bias && part.train_bias)) {
    OpBuilder weight = op(linear.names.weight_grad);
    if (part.train_weight) read(weight, x);
    weight.read(d(linear.out)).update(gradients_);
    if (part.train_weight) gemm(part.in, part.out, total_);
    if (part.bias && part.train_bias) b_.work().moves(bytes(part.out, regime_.compute).real());
  }
  if (d_a == kNoTensor) return;
  const TensorId dropped = drop_input(linear, x);
  adapter_op(linear, x, dropped).read(d_a).update(gradients_);
  gemm(part.in, part.lora_rank, total_);
}

// Makes x's gradient, or adds to it where another reader of x came before.
void LayerWriter::input_gradient(const GemmOp& linear, ValueId x, TensorId d_a) {
  const LinearPart& part = layer_->linear(linear.module);
  const bool first = d(x) == kNoTensor;
  if (first) d(x) = temporary(about(x).gradient, about(x).width);
  if (d_a != kNoTensor) {
    OpBuilder adapter = op(linear.names.adapter_input_grad).read(d_a).update(d(x));
    if (adapter_dropout_ != 0)  // masked on its way
      adapter.write(temporary(linear.names.adapter_input_grad, about(x).width));
    gemm(total_, part.in, part.lora_rank);
    if (adapter_dropout_ != 0)
      b_.work().moves((first ? 2 : 3) * bytes(part.in, regime_.compute).real());
  }
  OpBuilder input = op(linear.names.input_grad).read(d(linear.out)).update(d(x));
  dequantize(linear, input);
  gemm(total_, part.in, part.out);
}

void LayerWriter::gemms_backward(const LayerOp& at) {
  using models::decisions::LayerOpKind;
  const ValueId x = at.in[0].value;
  const auto producer = static_cast<std::size_t>(about(x).producer);
  const bool again = gradients_of_->makes_again(x);
  const LayerOpKind made_by =
      x == models::kBlockInput ? LayerOpKind::residual : layer_->ops->ops[producer].kind;
  if (made_by == LayerOpKind::activation && wants(x)) {
    // Its input comes again with the activation's backward, and the weight's gradient behind that.
    const GemmOp& only = at.gemms.front();
    if (in_float8(only)) {
      const Float8Cast d8 = gradient8(only, true);
      input_gradient8(only, x, d8);
      waiting_ = {&only, x, kNoTensor, d8};
      return;
    }
    const TensorId d_a = adapter_gradient(only);
    input_gradient(only, x, d_a);
    waiting_ = {&only, x, d_a};
    return;
  }
  const bool reads = std::ranges::any_of(at.gemms, [&](const GemmOp& linear) {
    const LinearPart& part = layer_->linear(linear.module);
    return part.train_weight || part.lora_rank > 0;
  });
  if (again && reads) norm_again(layer_->ops->ops[producer], producer);
  std::array<TensorId, models::decisions::kMostModules> d_a;
  std::array<Float8Cast, models::decisions::kMostModules> d8;
  const bool reads8 = std::ranges::any_of(at.gemms, [&](const GemmOp& linear) {
    return in_float8(linear) && wants(linear.out) && layer_->linear(linear.module).train_weight;
  });
  const Float8Cast x8 = reads8 ? input8(*first_in_float8(at), x, true) : Float8Cast();
  for (const GemmOp& linear : at.gemms) {
    if (!wants(linear.out)) continue;
    if (in_float8(linear)) {
      d8[static_cast<std::size_t>(linear.module)] = gradient8(linear, wants(x));
      weight_gradient8(linear, x8, d8[static_cast<std::size_t>(linear.module)]);
      continue;
    }
    TensorId& of_adapter = d_a[static_cast<std::size_t>(linear.module)];
    of_adapter = adapter_gradient(linear);
    weight_gradient(linear, x, of_adapter);
  }
  if (!wants(x)) return;
  for (const GemmOp& linear : at.gemms) {
    const auto module = static_cast<std::size_t>(linear.module);
    if (in_float8(linear))
      input_gradient8(linear, x, d8[module]);
    else
      input_gradient(linear, x, d_a[module]);
  }
}

// What it waited for is there.
void LayerWriter::wait_over(const Waiting& waiting) {
  const GemmOp& linear = *waiting.linear;
  if (!in_float8(linear)) return weight_gradient(linear, waiting.x, waiting.d_a);
  const bool reads = layer_->linear(linear.module).train_weight;
  weight_gradient8(linear, reads ? input8(linear, waiting.x, true) : Float8Cast(), waiting.d8);
}

}  // namespace plimsoll::planner::plimsoll_stack
