#include "planner/stacks/pytorch/dora.h"

#include "planner/stacks/pytorch/adapter.h"

// peft 0.21, tuners/lora/dora.py, and DoraLinearVariant in variants.py: result + (m - 1) · base +
// m · B(A(x)) · scaling, where m is the magnitude over the norm of each row of weight + scaling ·
// B·A, which is made anew in each forward and has no gradient.
namespace plimsoll::planner::pytorch {

using tape::Kind;
using tape::ValueId;

namespace {

enum : tape::Extent { kWidth = 1, kPartialSums, kCounters };

double real(SymInt count) {
  return count.real();
}

// F.linear(x, weight) of the frozen weight, whose dtype is x's.
WeightGemm gemm_again(const LinearPart& part, const DoraDtypes& d) {
  return {.in = part.in, .out = part.out, .weight = d.asked, .trains_weight = false};
}

// (scale - 1) · base + scale · B(A(x)) · scaling.
tape::Function shares_function(const DoraDtypes& d, bool base_grad, bool takes_bias) {
  tape::Function f;
  ValueId base = f.given({tape::kAll, d.of_base}, base_grad, ".out");
  const ValueId b = f.given({tape::kAll, d.low}, true, ".lora_B.out");
  const ValueId scale = f.given({kWidth, d.scale}, true, ".dora.scale");
  // The same once more: its gradient by way of the base is added by who knows what comes between.
  const ValueId again = f.given({kWidth, d.scale}, true, ".dora.less_one");
  f.keeps_given();
  f.sums_with(kWidth, {kPartialSums, kCounters});
  if (takes_bias) {
    base = f.named(f.apply(Kind::add, base, f.parameter({kWidth, d.bias}, false)), ".dora.base");
    f.hold(base);
  }
  const ValueId less_one = f.named(f.apply(Kind::add_number, again), ".dora.less_one");
  const ValueId base_share = f.apply(Kind::multiply, less_one, base);
  const ValueId lora_share = f.apply(Kind::scale, f.apply(Kind::multiply, scale, b));
  f.result(f.named(f.apply(Kind::add, base_share, lora_share), ".dora"));
  return f;
}

}  // namespace

DoraDtypes dora_dtypes(const LinearPart& part, const Regime& regime,
                       const models::Strategy& strategy, DType input, bool drops) {
  DoraDtypes d{};
  d.again = drops;
  d.own = regime.adapter;
  d.low = regime.gemm_dtype(d.own);
  d.result = result_dtype(part, regime, input);
  d.asked = adapter_input(part, regime, strategy, input);
  d.scale = promoted(d.own, d.asked);
  d.bias = part.packed != nullptr ? regime.compute : regime.weight;
  d.of_base = drops ? regime.gemm_dtype(d.asked) : d.result;
  const DType base = part.bias && !drops ? promoted(d.result, d.bias) : d.of_base;
  d.both = promoted(promoted(d.scale, base), promoted(d.scale, d.low));
  d.sum = promoted(d.result, d.both);
  d.out = adapted_result(part, regime, d.result);
  return d;
}

// get_lora_weight: B(A(1)) of the whole identity, transposed. Autocast's copies of A and B are made
// here, and found in its cache by the GEMMs with x. Autograd records it, and keeps what these
// GEMMs read until the function returns.
TensorId DoraWriter::lora_weight(LinearSaved& s, std::vector<TensorId>& held) {
  const SymInt in = part_.in, rank = part_.lora_rank;
  const bool casts = d_.low != d_.own;
  const TensorId eye = w_.temporary(n_.eye, in * in, d_.own);
  w_.op(n_.eye).write(eye);
  TensorId read = eye;
  if (casts) {
    s.a.weight_cast = w_.temporary(names_.a.weight_cast, in * rank, d_.low);
    read = w_.temporary(n_.eye_cast, in * in, d_.low);
  }
  const TensorId a = w_.temporary(n_.eye_a, in * rank, d_.low);
  auto first = w_.op(n_.eye_a).read(eye).write(s.a.weight_cast);
  if (casts) first.write(read);
  first.write(a);
  w_.b_.work().gemm({d_.low, real(in), real(rank), real(in)});
  if (casts) {
    s.b.weight_cast = w_.temporary(names_.b.weight_cast, rank * part_.out, d_.low);
    if (part_.lora_bias) s.b.bias_cast = w_.temporary(names_.b_bias.weight_cast, part_.out, d_.low);
  }
  const TensorId gemm = w_.temporary(n_.gemm, weights(), d_.low);
  auto second = w_.op(n_.gemm).read(a).read(eye).write(s.b.weight_cast).write(s.b.bias_cast);
  second.write(gemm);
  w_.b_.work().gemm({d_.low, real(in), real(part_.out), real(rank)});
  if (w_.saves_) held.insert(held.end(), {read, a});
  return w_.cast(n_.gemm_cast, gemm, weights(), d_.low, d_.asked);
}

// dequantize_module_weight, and its cast to x's dtype. Nothing where it is the parameter itself.
TensorId DoraWriter::base_weight() {
  const DType have = part_.packed != nullptr ? w_.regime_.unpacked : w_.regime_.weight;
  TensorId unpacked = kNoTensor;
  if (part_.packed == nullptr) {
    if (have == d_.asked) return kNoTensor;
    const TensorId copy = w_.temporary(n_.weight_cast, weights(), d_.asked);
    w_.op(n_.weight_cast).write(copy);
    w_.b_.work().moves((storage(weights(), have) + storage(weights(), d_.asked)).real());
    return copy;
  }
  TensorId scales = kNoTensor;
  if (part_.packed->doubly_quantized()) {
    scales = w_.temporary(names_.scales, ceil_divide(weights(), part_.packed->block), DType::fp32);
    w_.op(names_.scales).write(scales);
  }
  unpacked = w_.temporary(n_.weight, weights(), have);
  w_.op(n_.weight).read(scales).write(unpacked);
  w_.b_.work().moves(
      (storage(weights(), have) + Bytes(ceil_divide(weights() * part_.packed->bits, 8))).real());
  return w_.cast(n_.weight_cast, unpacked, weights(), have, d_.asked);
}

// get_weight_norm: of the rows of weight + scaling · B·A; then the magnitude over it.
void DoraWriter::scale(TensorId weight, TensorId gemm, LinearSaved& s) {
  const TensorId scaled = w_.copy(n_.scaled, gemm, weights(), d_.asked);
  const TensorId sum = w_.temporary(n_.weight_sum, weights(), d_.asked);
  w_.op(n_.weight_sum).read(weight).read(scaled).write(sum);
  // Autocast makes norms in fp32; a Conv1D's rows are columns.
  const DType made = w_.regime_.autocast ? DType::fp32 : d_.asked;
  TensorId norm = w_.make(n_.norm, part_.out, made);
  const SymBytes scratch = part_.conv1d ? w_.column_sum(part_.in, part_.out).total() : SymBytes();
  w_.op(n_.norm).read(sum).write(norm).scratch(scratch);
  if (made != d_.asked) {
    const TensorId narrow = w_.make(n_.norm_cast, part_.out, d_.asked);
    w_.op(n_.norm_cast).read(norm).read(sum).write(narrow);
    norm = narrow;
  }
  s.dora.norm = norm;
  const TensorId scale = w_.make(n_.scale, part_.out, d_.scale);
  w_.op(n_.scale).read(norm).write(scale);
  s.dora.given[2] = s.dora.given[3] = {scale};
}

TapePart DoraWriter::shares() const {
  static tape::Rules<1u << 10> rules;
  const bool takes_bias = part_.bias && !d_.again;
  std::size_t key = tape::dtype_bits(d_.of_base);
  for (const DType of : {d_.low, d_.scale, d_.bias}) key = key << 2 | tape::dtype_bits(of);
  for (const bool bit : {grad_, takes_bias}) key = key << 1 | bit;
  return tape_part(names_.base.module,
                   rules.find(key, [&] { return shares_function(d_, grad_, takes_bias); }));
}

TapeCounts DoraWriter::counts() const {
  TapeCounts counts{};
  counts[tape::kAll] = checked_multiply(w_.tokens_.total(), part_.out);
  counts[kWidth] = part_.out;
  const ColumnSumScratch sum = w_.column_sum(w_.tokens_.total(), part_.out);
  counts[kPartialSums] = sum.partial.value();
  counts[kCounters] = sum.counters.value();
  return counts;
}

// With dropout the base's GEMM runs again (base_result=None), and autograd keeps the whole
// weight in the dtype in which it is multiplied.
TensorId DoraWriter::forward(Ref x, Category category, bool stops, LinearSaved& s) {
  const SymInt outs = checked_multiply(w_.tokens_.total(), part_.out);
  std::vector<TensorId> held;  // by the GEMM's graph
  const TensorId gemm = lora_weight(s, held), weight = base_weight();
  scale(weight, gemm, s);
  w_.gemm_forward(names_.a, names_.a, adapter_a(part_, d_.own, true), x, d_.asked,
                  Category::activations, false, s.a);
  w_.gemm_forward(names_.b, names_.b_bias, adapter_b(part_, d_.own, true), {s.a.out}, d_.low,
                  Category::activations, false, s.b);
  s.dora.given[0] = {s.base.out};
  s.dora.given[1] = {s.b.out};
  if (d_.again) {
    w_.gemm_forward(n_.again, n_.again, gemm_again(part_, d_), x, d_.asked, Category::activations,
                    false, s.dora.again);
    if (s.dora.again.weight_cast == kNoTensor) s.dora.again.weight_cast = weight;
    s.dora.given[0] = {s.dora.again.out};
  }
  w_.tape_forward(shares(), counts(), s.dora.given, s.dora.shares, stops);
  // Python's frame.
  auto leave = w_.op(n_.leave).release(gemm).release(weight).release(s.dora.norm);
  for (const Ref given : s.dora.given) leave.release(given.tensor);
  for (const TensorId tensor : held) leave.release(tensor);
  if (stops) ModuleWriter::read(leave.release(s.base.out), x);
  w_.b_.work().moves(0, 0);
  if (stops) return kNoTensor;
  const bool narrows = d_.sum != d_.out;
  const TensorId sum =
      w_.make(names_.sum, outs, d_.sum, narrows ? Category::temporaries : category);
  auto add = w_.op(names_.sum).read(s.base.out).read(s.dora.shares.out).write(sum);
  add.touch(x.tensor, x.delta, x.beyond, models::Access::release);  // DoraLinearVariant.forward's
  return narrows ? w_.copy(names_.base.out, sum, outs, d_.out, category) : sum;
}

Sum DoraWriter::backward(const LinearSaved& s, TensorId d_sum, TensorId& d_base, const Place& at,
                         Sum sum) {
  const SymInt outs = checked_multiply(w_.tokens_.total(), part_.out);
  const TensorId d_both = w_.cast(n_.both_grad, d_sum, outs, d_.sum, d_.both);
  // The sum's gradient itself is the base's, where no cast parts them.
  const bool to_base = grad_ && !d_.again, flows = to_base && d_base != d_both;
  std::array<TensorId, 3> others{kNoTensor, kNoTensor, kNoTensor};
  const TensorId d_share =
      w_.tape_backward(shares(), counts(), s.dora.given, s.dora.shares,
                       {.result = d_both, .flowing = flows ? d_base : kNoTensor, .others = others});
  if (flows)
    d_base = d_share;
  else if (to_base)
    d_base = add_share(d_base, d_share, !at.d_shared);
  w_.op(n_.scale_grad).update(others[1]).read(others[2]);
  if (d_.again && x_grad_)
    sum = w_.gemm_backward(n_.again, n_.again, gemm_again(part_, d_), d_.asked, true, s.dora.again,
                           d_share, sum, {});
  const Sum d_a = w_.gemm_backward(names_.b, names_.b_bias, adapter_b(part_, d_.own, true), d_.low,
                                   true, s.b, others[0], {}, {});
  sum = w_.gemm_backward(names_.a, names_.a, adapter_a(part_, d_.own, true), d_.asked, x_grad_, s.a,
                         d_a.tensor, sum, {at.input, {}, {}});
  magnitude_gradient(others[1], s);
  w_.widen_late();
  return sum;
}

// A base's gradient that is the whole sum's.
TensorId DoraWriter::add_share(TensorId d_base, TensorId d_share, bool in_place) {
  if (in_place) {
    w_.op(n_.base_grad).update(d_base).read(d_share);
    return d_base;
  }
  const TensorId sum =
      w_.temporary(n_.base_grad, checked_multiply(w_.tokens_.total(), part_.out), d_.result);
  w_.op(n_.base_grad).read(d_base).read(d_share).write(sum);
  return sum;
}

// Of its quotient over the norm.
void DoraWriter::magnitude_gradient(TensorId d_scale, const LinearSaved& s) {
  const bool narrows = d_.scale != d_.own;
  const auto begin = [&] { return w_.sink_->begin(n_.magnitude, part_.out, true); };
  const TensorId made =
      narrows ? w_.temporary(n_.magnitude.weight_grad_low, part_.out, d_.scale) : begin();
  w_.op(n_.magnitude.module).read(d_scale).read(s.dora.norm).write(made);
  const TensorId own = narrows ? begin() : made;
  if (narrows) w_.op(n_.magnitude.weight_grad).read(made).write(own);
  w_.sink_->end(n_.magnitude, own);
}

}  // namespace plimsoll::planner::pytorch
