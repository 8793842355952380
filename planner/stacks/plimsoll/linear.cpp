// Products with a weight, and their adapters.
#include <algorithm>

#include "planner/stacks/plimsoll/layer_writer.h"

namespace plimsoll::planner::own {

// Of the op that was written last.
void LayerWriter::gemm(std::int64_t m, std::int64_t n, std::int64_t k) {
  b_.work().gemm(
      {regime_.compute, static_cast<double>(m), static_cast<double>(n), static_cast<double>(k)});
}

// What the adapter reads of a product's input: with dropout a masked copy, else nothing but that.
TensorId LayerWriter::drop_input(const ProductOp& product, ValueId x) {
  if (adapter_dropout_ == 0) return kNoTensor;
  const TensorId dropped = temporary(product.names.adapter_input, about(x).width);
  OpBuilder mask = op(product.names.adapter_dropout);
  read(mask, x);
  mask.write(dropped);
  return dropped;
}

OpBuilder LayerWriter::adapter_op(const ProductOp& product, ValueId x, TensorId dropped) {
  OpBuilder a = op(product.names.adapter_a);
  if (dropped == kNoTensor)
    read(a, x);
  else
    a.read(dropped);
  return a;
}

// x · A. Nothing without an adapter.
TensorId LayerWriter::adapter_a(const ProductOp& product, ValueId x) {
  const LinearPart& part = layer_->linear(product.module);
  if (part.lora_rank == 0) return kNoTensor;
  const TensorId dropped = drop_input(product, x);
  const TensorId a_out = make(product.names.adapter_a_out, part.lora_rank);
  adapter_op(product, x, dropped).write(a_out);
  gemm(total_, part.lora_rank, part.in);
  return a_out;
}

// A packed weight is made anew while the op runs.
void LayerWriter::dequantize(const ProductOp& product, OpBuilder& reader) {
  const LinearPart& part = layer_->linear(product.module);
  if (part.packed == nullptr) return;
  const std::int64_t values = checked_multiply(part.in, part.out);
  const Bytes whole = storage(Count(values), regime_.compute);
  reader.write(b_.tensor(product.names.dequantized, whole, Category::temporaries));
  // Written, and read by the product; codes and scales come to about half a byte of a value.
  b_.work().moves(whole.real() + storage(Count(values), DType::uint8).real() / 2);
}

// Forward -----------------------------------------------------------------------------------------

// Each writes a tensor, to which the adapter's part is added. Without `results` nobody reads what
// the last op of a recomputation makes, but for what backward has asked for.
void LayerWriter::products(const LayerOp& at, bool results) {
  const ValueId x = at.in[0].value;
  for (const ProductOp& product : at.products)
    results = results || gradients_of_->saves(product.out);
  for (const ProductOp& product : at.products) {
    TensorId& a_out = t_->adapters[static_cast<std::size_t>(product.module)];
    if (!results) {
      a_out = adapter_a(product, x);
      continue;
    }
    const TensorId out = value(product.out) = make_value(product.out);
    OpBuilder made = op(product.names.product);
    read(made, x);
    made.write(out);
    const LinearPart& part = layer_->linear(product.module);
    dequantize(product, made);
    gemm(total_, part.out, part.in);
    a_out = adapter_a(product, x);
    if (a_out == kNoTensor) continue;
    op(product.names.adapter_b).read(a_out).update(out);
    gemm(total_, part.out, part.lora_rank);
  }
}

// Backward ----------------------------------------------------------------------------------------

// d(x · A), and the gradient of B. Nothing without an adapter.
TensorId LayerWriter::adapter_gradient(const ProductOp& product) {
  const LinearPart& part = layer_->linear(product.module);
  if (part.lora_rank == 0) return kNoTensor;
  const TensorId d_a = temporary(product.names.adapter_a_out_grad, part.lora_rank);
  op(product.names.adapter_b)
      .read(d(product.out))
      .read(t_->adapters[static_cast<std::size_t>(product.module)])
      .write(d_a)
      .update(gradients_);
  gemm(total_, part.lora_rank, part.out);
  gemm(part.lora_rank, part.out, total_);
  return d_a;
}

void LayerWriter::weight_gradient(const ProductOp& product, ValueId x, TensorId d_a) {
  const LinearPart& part = layer_->linear(product.module);
  if (part.train_weight || (part.bias && part.train_bias)) {
    OpBuilder weight = op(product.names.weight_grad);
    if (part.train_weight) read(weight, x);
    weight.read(d(product.out)).update(gradients_);
    if (part.train_weight) gemm(part.in, part.out, total_);
    if (part.bias && part.train_bias) b_.work().moves(bytes(part.out, regime_.compute).real());
  }
  if (d_a == kNoTensor) return;
  const TensorId dropped = drop_input(product, x);
  adapter_op(product, x, dropped).read(d_a).update(gradients_);
  gemm(part.in, part.lora_rank, total_);
}

// Makes x's gradient, or adds to it where another reader of x came before.
void LayerWriter::input_gradient(const ProductOp& product, ValueId x, TensorId d_a) {
  const LinearPart& part = layer_->linear(product.module);
  if (d(x) == kNoTensor) d(x) = temporary(about(x).gradient, about(x).width);
  OpBuilder input = op(product.names.input_grad).read(d(product.out)).update(d(x));
  dequantize(product, input);
  gemm(total_, part.in, part.out);
  if (d_a == kNoTensor) return;
  if (adapter_dropout_ == 0) {
    op(product.names.adapter_input_grad).read(d_a).update(d(x));
    gemm(total_, part.in, part.lora_rank);
    return;
  }
  // Masked while it is added.
  const TensorId whole = temporary(product.names.adapter_input_grad, about(x).width);
  op(product.names.adapter_input_grad).read(d_a).write(whole).update(d(x));
  gemm(total_, part.in, part.lora_rank);
  b_.work().moves(3 * bytes(part.in, regime_.compute).real());
}

void LayerWriter::products_backward(const LayerOp& at) {
  using models::decisions::LayerOpKind;
  const ValueId x = at.in[0].value;
  const auto producer = static_cast<std::size_t>(about(x).producer);
  const bool again = gradients_of_->makes_again(x);
  const LayerOpKind made_by =
      x == models::kBlockInput ? LayerOpKind::residual : layer_->ops->ops[producer].kind;
  if (made_by == LayerOpKind::activation && wants(x)) {
    // Its input comes again with the activation's backward, and the weight's gradient behind that.
    const ProductOp& only = at.products.front();
    const TensorId d_a = adapter_gradient(only);
    input_gradient(only, x, d_a);
    waiting_ = {&only, x, d_a};
    return;
  }
  const bool reads = std::ranges::any_of(at.products, [&](const ProductOp& product) {
    const LinearPart& part = layer_->linear(product.module);
    return part.train_weight || part.lora_rank > 0;
  });
  if (again && reads) norm_again(layer_->ops->ops[producer], producer);
  std::array<TensorId, models::decisions::kMostModules> d_a;
  for (const ProductOp& product : at.products) {
    if (!wants(product.out)) continue;
    TensorId& of_adapter = d_a[static_cast<std::size_t>(product.module)];
    of_adapter = adapter_gradient(product);
    weight_gradient(product, x, of_adapter);
  }
  if (!wants(x)) return;
  for (const ProductOp& product : at.products)
    input_gradient(product, x, d_a[static_cast<std::size_t>(product.module)]);
}

}  // namespace plimsoll::planner::own
