// IA3 (peft 0.21, tuners/ia3/layer.py, Linear.forward).
#include "planner/stacks/pytorch/vectors.h"

namespace plimsoll::planner::pytorch {

using tape::Function;
using tape::Kind;
using tape::ValueId;

namespace {

struct Ia3Dtypes {
  DType value, vector, result;
};

// (value · vector).to(result). Both stay for autograd alone.
Function scaled_function(const Ia3Dtypes& of, bool value_grad) {
  Function f;
  const ValueId value = f.given({tape::kAll, of.value}, value_grad, ".ia3.value");
  const ValueId vector = f.given({kVectorWidth, of.vector}, true, ".ia3_l.copy");
  f.keeps_given();
  f.sums_with(kVectorWidth, {kVectorPartialSums, kVectorCounters});
  f.result(f.cast(f.apply(Kind::multiply, value, vector), of.result));
  f.named(f.result(), ".ia3");
  return f;
}

TapePart scaled_tape(const char* name, const Ia3Dtypes& of, bool value_grad) {
  static tape::Rules<1u << 7> rules;
  std::size_t key = tape::dtype_bits(of.value);
  key = key << 2 | tape::dtype_bits(of.vector);
  key = key << 2 | tape::dtype_bits(of.result);
  key = key << 1 | value_grad;
  return tape_part(name, rules.find(key, [&] { return scaled_function(of, value_grad); }));
}

bool scales_input(const LinearPart& part) {
  return part.adapter == Adapter::ia3_input;
}

std::int64_t width_of(const LinearPart& part) {
  return scales_input(part) ? part.in : part.out;
}

Ia3Dtypes dtypes_of(const LinearPart& part, const Regime& regime, DType input) {
  if (scales_input(part)) return {regime.adapter, regime.adapter, input};
  const DType result = result_dtype(part, regime, input);
  return {result, regime.adapter, result};
}

}  // namespace

// `1 * vector` is made first. Of a feed-forward module x is cast to the vector's dtype, and what
// the GEMM reads back to its own. Python holds x, its cast, the vector's copy and what the GEMM
// read until it returns.
void VectorWriter::ia3_forward(Ref input, Category category, bool stops, LinearSaved& s) {
  const Ia3Names& n = ia3_names(names_.base.module);
  const Ia3Dtypes dtypes = dtypes_of(part_, w_.regime_, input_);
  const std::int64_t width = width_of(part_);
  const TensorId vector = w_.make(n.copy, width, dtypes.vector);
  op(n.copy).write(vector);
  Ref value = input;
  if (scales_input(part_)) {
    if (dtypes.value != input_) {
      value = {w_.make(n.value, values(part_.in), dtypes.value)};
      auto cast = op(n.value);
      ModuleWriter::read(cast, input).write(value.tensor);
    }
    s.ia3.given = {value, {vector}};
    w_.tape_forward(scaled_tape(names_.base.module, dtypes, s.input_grad), counts(width),
                    s.ia3.given, s.ia3.scaled);
    w_.base_forward(names_, part_, {s.ia3.scaled.out}, input_, category, stops, s.base);
    s.out = s.base.out;
  } else {
    w_.base_forward(names_, part_, input, input_, category, false, s.base);
    s.ia3.given = {Ref{s.base.out}, {vector}};
    w_.tape_forward(scaled_tape(names_.base.module, dtypes, base_grad(part_, s.input_grad)),
                    counts(width), s.ia3.given, s.ia3.scaled, stops);
    s.out = s.ia3.scaled.out;
  }
  auto leave = op(names_.base.module).read(vector);
  if (scales_input(part_)) ModuleWriter::read(leave, value).read(s.ia3.scaled.out);
  leave.touch(input.tensor, input.delta, input.beyond);
  w_.b_.work().moves(0, 0);
}

// The vector's copy was made in front of all the rest: its node is the last.
Sum VectorWriter::ia3_backward(bool input_grad, const LinearSaved& s, TensorId d_out, Sum sum,
                               const Place& at) {
  const Ia3Names& n = ia3_names(names_.base.module);
  TensorId d_vector = kNoTensor;
  if (scales_input(part_)) {
    sum = scaled_input_backward(input_grad, s, d_out, sum, at, d_vector);
  } else {
    const bool base = base_grad(part_, input_grad);
    const TensorId d_base = w_.tape_backward(
        scaled_tape(names_.base.module, dtypes_of(part_, w_.regime_, input_), base),
        counts(part_.out), s.ia3.given, s.ia3.scaled, {.result = d_out, .others = {&d_vector, 1}});
    if (base) sum = w_.base_backward(names_, part_, input_, input_grad, s.base, d_base, sum, at);
  }
  const TensorId grad = w_.sink_->begin(n.vector, width_of(part_), true);
  op(n.vector.module).read(d_vector).write(grad);
  w_.sink_->end(n.vector, grad);
  return sum;
}

Sum VectorWriter::scaled_input_backward(bool input_grad, const LinearSaved& s, TensorId d_out,
                                        Sum sum, const Place& at, TensorId& d_vector) {
  const Ia3Names& n = ia3_names(names_.base.module);
  const Ia3Dtypes dtypes = dtypes_of(part_, w_.regime_, input_);
  const SymInt ins = values(part_.in);
  Place inside = at;
  inside.into = {};
  inside.held = {};
  inside.input = {s.ia3.scaled.out};
  const Sum d = w_.base_backward(names_, part_, input_, true, s.base, d_out, {}, inside);
  const bool casts = dtypes.value != input_, ends = !at.into.none();
  // As a recomputation made it, unless it is the layer's own input.
  const bool made = casts || s.ia3.given[0].delta == 0;
  const std::array<Ref, 2> given{made ? s.ia3.given[0] : at.input, s.ia3.given[1]};
  const TensorId d_value = w_.tape_backward(
      scaled_tape(names_.base.module, dtypes, input_grad), counts(part_.in), given, s.ia3.scaled,
      {.result = d.tensor, .into = casts ? Ref{} : at.into, .others = {&d_vector, 1}});
  auto leave = op(names_.base.module);
  ModuleWriter::release(leave, at.held);
  w_.b_.work().moves(0, 0);
  if (!input_grad) return sum;
  if (ends) return w_.add_into(names_.base, d_value, casts, sum, at.into);
  const TensorId narrow = w_.cast(n.value_grad, d_value, ins, dtypes.value, input_);
  return w_.add_gradient(names_.base.grad_layout, sum, {narrow, false}, input_, ins);
}

}  // namespace plimsoll::planner::pytorch
