// VeRA (peft 0.21, tuners/vera/layer.py, Linear.forward):
// result + lambda_b · B(lambda_d · A(dropout(x))), then back to the base's dtype, and to that of x,
// which autocast's base has not. A and B are the upper left corners of two frozen matrices that all
// layers share; views, which no GEMM copies.
#include "planner/stacks/pytorch/vectors.h"

namespace plimsoll::planner::pytorch {

using tape::Function;
using tape::Kind;
using tape::ValueId;

namespace {

// lambda · what a GEMM made.
Function scaled_function(DType own, DType low, bool grad) {
  Function f;
  const ValueId made = f.given({tape::kAll, low}, grad, ".made");
  const ValueId lambda = f.parameter({kVectorWidth, own}, true);
  f.keeps_given();
  f.sums_with(kVectorWidth, {kVectorPartialSums, kVectorCounters});
  f.result(f.named(f.apply(Kind::multiply, lambda, made), ".scaled"));
  return f;
}

WeightGemm frozen(std::int64_t in, std::int64_t out, DType dtype) {
  return {.in = in, .out = out, .weight = dtype, .trains_weight = false};
}

}  // namespace

TapeCounts VectorWriter::counts(std::int64_t width) const {
  TapeCounts counts{};
  counts[tape::kAll] = checked_multiply(w_.tokens_.total(), width);
  counts[kVectorWidth] = width;
  const ColumnSumScratch sum = w_.column_sum(w_.tokens_.total(), width);
  counts[kVectorPartialSums] = sum.partial.value();
  counts[kVectorCounters] = sum.counters.value();
  return counts;
}

// `of`: the GEMM with A or with B.
TapePart VectorWriter::scaled(const ModuleNames& of, bool grad) const {
  static tape::Rules<1u << 5> rules;
  const DType own = w_.regime_.adapter, low = w_.regime_.gemm_dtype(own);
  const std::size_t key = (tape::dtype_bits(own) << 2 | tape::dtype_bits(low)) << 1 | grad;
  return tape_part(of.module, rules.find(key, [&] { return scaled_function(own, low, grad); }));
}

// Python holds x, cast or not, until it returns.
void VectorWriter::vera_forward(Ref input, Category category, bool stops, LinearSaved& s) {
  const VeraNames& n = vera_names(names_.base.module);
  VeraSaved& v = s.vera;
  const std::int64_t rank = part_.lora_rank;
  const SymInt outs = values(part_.out);
  const DType own = w_.regime_.adapter, made = promoted(own, w_.regime_.gemm_dtype(own));
  const DType result = result_dtype(part_, w_.regime_, input_);
  const auto [x, dropped] = w_.adapter_reads(names_, input, values(part_.in), input_, own, s.mask);
  w_.gemm_forward(n.a, n.a, frozen(part_.in, rank, own), dropped, own, Category::activations, false,
                  v.a);
  v.of_a = {Ref{v.a.out}};
  w_.tape_forward(scaled(n.a, s.input_grad), counts(rank), v.of_a, v.scaled_a);
  w_.gemm_forward(n.b, n.b, frozen(rank, part_.out, own), {v.scaled_a.out}, made,
                  Category::activations, false, v.b);
  v.of_b = {Ref{v.b.out}};
  w_.tape_forward(scaled(n.b, true), counts(part_.out), v.of_b, v.scaled_b, stops);
  const Ref held = x;
  const auto leave = [&](OpBuilder last) {
    ModuleWriter::read(last, held).touch(input.tensor, input.delta, input.beyond);
    w_.b_.work().moves(0, 0);
  };
  if (stops) return leave(op(n.b.module).release(s.base.out));
  const DType sum_dtype = promoted(result, made);
  const bool narrows = sum_dtype != result, widens = result != input_;
  const TensorId sum =
      w_.make(names_.sum, outs, sum_dtype, narrows ? Category::temporaries : category);
  op(names_.sum).read(s.base.out).read(v.scaled_b.out).write(sum);
  s.out = sum;
  if (narrows)
    s.out = w_.copy(names_.base.out, sum, outs, result, widens ? Category::temporaries : category);
  if (widens) s.out = w_.copy(n.returned, s.out, outs, input_, category);
  leave(op(names_.base.module));
}

Sum VectorWriter::vera_backward(bool input_grad, const LinearSaved& s, TensorId d_out, Sum sum,
                                const Place& at) {
  const VeraNames& n = vera_names(names_.base.module);
  const VeraSaved& v = s.vera;
  const std::int64_t rank = part_.lora_rank;
  const SymInt ins = values(part_.in), outs = values(part_.out);
  const DType own = w_.regime_.adapter, made = promoted(own, w_.regime_.gemm_dtype(own));
  const DType result = result_dtype(part_, w_.regime_, input_);
  const DType sum_dtype = promoted(result, made);
  const bool base = base_grad(part_, input_grad);
  TensorId d = w_.cast(n.returned_grad, d_out, outs, input_, result);
  d = w_.cast(names_.sum_grad, d, outs, result, sum_dtype);
  const TensorId d_base = base ? w_.cast(names_.base_grad, d, outs, sum_dtype, result) : kNoTensor;
  d = w_.cast(names_.scaled_grad, d, outs, sum_dtype, made);
  d = w_.tape_backward(scaled(n.b, true), counts(part_.out), v.of_b, v.scaled_b,
                       {.result = d, .parameters = {&n.lambda_b}, .adapters = 0});
  d = w_.gemm_backward(n.b, n.b, frozen(rank, part_.out, own), made, true, v.b, d, {}, {}).tensor;
  d = w_.tape_backward(scaled(n.a, input_grad), counts(rank), v.of_a, v.scaled_a,
                       {.result = d, .parameters = {&n.lambda_d}, .adapters = 0});
  if (input_grad) {
    const bool own_node = own != input_ || w_.strategy_.lora->dropout > 0;
    const Sum d_x = w_.gemm_backward(n.a, n.a, frozen(part_.in, rank, own), own, true, v.a, d,
                                     own_node ? Sum{} : sum, {});
    if (!own_node) sum = d_x;
    if (own_node) {
      d = w_.dropout_backward(names_.dropped_grad, d_x.tensor, s.mask, ins, own);
      d = w_.cast(names_.a_input_grad, d, ins, own, input_);
      sum = w_.add_gradient(names_.base.input_grad, sum, {d, false}, input_, ins);
    }
  }
  if (!base) return sum;
  return w_.base_backward(names_, part_, input_, input_grad, s.base, d_base, sum, at);
}

}  // namespace plimsoll::planner::pytorch
