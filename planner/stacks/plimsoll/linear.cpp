// Products with a weight, and their adapters.
#include "planner/stacks/plimsoll/layer_writer.h"

namespace plimsoll::planner::own {

// Of the op that was written last.
void LayerWriter::gemm(std::int64_t m, std::int64_t n, std::int64_t k) {
  b_.work().gemm(
      {regime_.compute, static_cast<double>(m), static_cast<double>(n), static_cast<double>(k)});
}

// With dropout the adapter reads a masked copy of the input.
TensorId LayerWriter::drop_input(const LinearNames& names, const LinearPart& part, TensorId in) {
  if (adapter_dropout_ == 0) return in;
  const TensorId dropped = temporary(names.adapter_input, part.in);
  op(names.adapter_dropout).read(in).write(dropped);
  return dropped;
}

// x · A. Nothing without an adapter.
TensorId LayerWriter::adapter_a(const LinearNames& names, const LinearPart& part, TensorId in) {
  if (part.lora_rank == 0) return kNoTensor;
  const TensorId dropped = drop_input(names, part, in);
  const TensorId a_out = make(names.adapter_a_out, part.lora_rank);
  op(names.adapter_a).read(dropped).write(a_out);
  gemm(total_, part.lora_rank, part.in);
  return a_out;
}

// Writes `out`, or a new tensor; the adapter's part is added to it.
TensorId LayerWriter::product(const LinearNames& names, const LinearPart& part, TensorId in,
                              TensorId out, TensorId& a_out) {
  if (out == kNoTensor) out = make(names.out, part.out);
  op(names.product).read(in).write(out);
  gemm(total_, part.out, part.in);
  a_out = adapter_a(names, part, in);
  if (a_out == kNoTensor) return out;
  op(names.adapter_b).read(a_out).update(out);
  gemm(total_, part.out, part.lora_rank);
  return out;
}

// d(x · A), and the gradient of B. Nothing without an adapter.
TensorId LayerWriter::adapter_gradient(const LinearNames& names, const LinearPart& part,
                                       TensorId d_out, TensorId a_out) {
  if (part.lora_rank == 0) return kNoTensor;
  const TensorId d_a = temporary(names.adapter_a_out_grad, part.lora_rank);
  op(names.adapter_b).read(d_out).read(a_out).write(d_a).update(gradients_);
  gemm(total_, part.lora_rank, part.out);
  gemm(part.lora_rank, part.out, total_);
  return d_a;
}

void LayerWriter::weight_gradient(const LinearNames& names, const LinearPart& part, TensorId in,
                                  TensorId d_out, TensorId d_a) {
  if (part.train_weight || (part.bias && part.train_bias))
    op(names.weight_grad).read(part.train_weight ? in : kNoTensor).read(d_out).update(gradients_);
  if (part.train_weight) gemm(part.in, part.out, total_);
  if (part.bias && part.train_bias) b_.work().moves(bytes(part.out, regime_.compute).real());
  if (d_a == kNoTensor) return;
  const TensorId dropped = drop_input(names, part, in);
  op(names.adapter_a).read(dropped).read(d_a).update(gradients_);
  gemm(part.in, part.lora_rank, total_);
}

// Writes `d_in`, or adds to it where another product of the same input came before.
void LayerWriter::input_gradient(const LinearNames& names, const LinearPart& part, TensorId d_out,
                                 TensorId d_a, TensorId d_in) {
  op(names.input_grad).read(d_out).update(d_in);
  gemm(total_, part.in, part.out);
  if (d_a == kNoTensor) return;
  if (adapter_dropout_ == 0) {
    op(names.adapter_input_grad).read(d_a).update(d_in);
    gemm(total_, part.in, part.lora_rank);
    return;
  }
  const TensorId whole = temporary(names.adapter_input_grad, part.in);  // masked while it is added
  op(names.adapter_input_grad).read(d_a).write(whole).update(d_in);
  gemm(total_, part.in, part.lora_rank);
  b_.work().moves(3 * bytes(part.in, regime_.compute).real());
}

}  // namespace plimsoll::planner::own
