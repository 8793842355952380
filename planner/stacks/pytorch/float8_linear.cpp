// Casts and GEMMs of torchao's Float8Linear.
#include "planner/stacks/pytorch/float8.h"

namespace plimsoll::planner::pytorch {

namespace {

constexpr DType kGradient = DType::fp8_e5m2;

Gemm float8_gemm(SymInt m, SymInt n, SymInt k) {
  return {DType::fp8_e4m3, m.real(), n.real(), k.real()};
}

}  // namespace

Float8Writer::Source Float8Writer::of_input(Over over) const {
  return {.rows = tokens(), .columns = part_.in, .dtype = w_.regime_.compute, .over = over};
}

// weight.t() is [in, out]: forward every column of it has a scale, which is a stored row; backward
// every row.
Float8Writer::Source Float8Writer::of_weight(Over over, bool backward) const {
  Source source{.rows = part_.out,
                .columns = part_.in,
                .dtype = w_.regime_.weight,
                .over = over,
                .transposed = true};
  if (backward && over == Over::rows) source.over = Over::columns;
  return source;
}

// Gradients have the wider exponent where one scale is for all of them.
Float8Writer::Source Float8Writer::of_grad(Over over) const {
  return {.rows = tokens(),
          .columns = part_.out,
          .dtype = w_.regime_.compute,
          .to = by_rows() ? DType::fp8_e4m3 : kGradient,
          .over = over};
}

// hp_tensor_to_float8_dynamic: |x|, the largest of all (torch.max, which wants them contiguous) or
// of each row or column (torch.amax); in fp64 the largest number of float8 over that, in fp32 the
// scale, by rows rounded to a power of 2; x in fp32 times that, clamped, in float8.
Float8Writer::Operand Float8Writer::cast(const Float8Names::Cast& names, const Source& source,
                                         Ref from) {
  const SymInt values = checked_multiply(source.rows, source.columns);
  const SymInt scales = source.over == Over::all    ? SymInt(1)
                        : source.over == Over::rows ? source.rows
                                                    : source.columns;
  ProgramBuilder& b = w_.b_;
  const Operand made{w_.temporary(names.values, values, source.to),
                     w_.temporary(names.scale, scales, DType::fp32), source.over};
  const SymBytes magnitude = w_.bytes(values, source.dtype), wide = fp32(values);
  const SymBytes largest = w_.bytes(scales, source.dtype);
  const SymBytes fp64 = w_.bytes(scales, DType::fp64), single = fp32(scales);
  const SymBytes contiguous =
      source.over == Over::all && source.transposed ? magnitude : SymBytes();
  ColumnSumScratch parts;
  if (source.over == Over::all)
    parts = whole_reduction_scratch(b, w_.rules_.gpu, values, source.dtype);
  if (source.over == Over::columns)
    parts = column_sum_scratch(b, w_.rules_.gpu, source.rows, source.columns, source.dtype);
  const bool casts = source.dtype != DType::fp32;
  auto op = w_.op(names.values).write(made.scale).write(made.values);
  w_.read(op, from);
  // What stands beside the results while the magnitude is looked at, and when they are made.
  const SymBytes out = w_.bytes(values, source.to) + single;
  const SymBytes looking = magnitude + largest + contiguous + parts.total();
  const SymBytes making = wide + wide;
  op.scratch(larger(looking, making + out) - out);
  const double n = values.real(), own = magnitude.real();
  const WorkOfOp work = b.work();
  work.moves(3 * own + (casts ? own + 4 * n : 0) + 21 * n + 2 * contiguous.real(), casts ? 10 : 9);
  work.compiled(2 * own + n);
  if (!b.keeps_blocks()) return made;
  BlockEvents events;
  const auto abs = events.take(magnitude), max = events.take(largest);
  for (const SymBytes part : {contiguous, parts.partial, parts.counters})
    if (part > Bytes(0)) events.drop(events.take(part));
  events.drop(abs);
  const auto amax = events.take(fp64), clamped = events.take(fp64), inverse = events.take(fp64),
             ratio = events.take(fp64);
  events.drop(clamped);
  events.drop(inverse);
  if (by_rows()) {
    const auto scale = events.take(single);
    events.drop(ratio);
    const auto power = events.take(single), floor = events.take(single);
    events.drop(power);
    events.birth(made.scale);
    for (const auto block : {max, amax, scale, floor}) events.drop(block);
  } else {
    events.birth(made.scale);
    for (const auto block : {max, amax, ratio}) events.drop(block);
  }
  const auto upcast = casts ? events.take(wide) : 0;
  events.take(wide);  // scaled
  if (casts) events.drop(upcast);
  events.take(wide);  // clamped
  events.birth(made.values);
  b.blocks(std::move(events));
  return made;
}

// a [m, k] times b [k, n]. The kernel wants a by rows and b by columns. Padding to a multiple of 16
// copies an operand also where there is none to add, and leaves it by rows where there is. With a
// scale for each row and without fast accumulation the kernel multiplies without scales, whose
// products the result is multiplied with.
OpBuilder Float8Writer::multiply(const Operand& a, const Operand& b, const Product& product,
                                 Ref out) {
  constexpr std::int64_t kAlign = 16;
  const auto [m, n, k, dtype, fast, lays_out_a, lays_out_b] = product;
  const SymInt inner = pads() ? round_up(k, kAlign) : k;
  const bool grows = pads() && inner > k;
  const auto eight = [&](SymInt values) { return w_.bytes(values, DType::fp8_e4m3); };
  const SymBytes of_a = eight(checked_multiply(m, inner)), of_b = eight(checked_multiply(inner, n));
  const bool copies_a = lays_out_a && !grows, copies_b = lays_out_b || grows;
  const bool rows = a.over != Over::all || b.over != Over::all;
  const bool repeats = a.over != Over::all && b.over == Over::all;
  const SymBytes inverse_a = fp32(a.over == Over::all ? SymInt(1) : m);
  const SymBytes inverse_b = fp32(rows ? n : SymInt(1));
  const bool behind = rows && !fast;
  const SymBytes products = behind ? fp32(checked_multiply(m, n)) : SymBytes();
  const SymBytes one = fp32(1);
  auto op = w_.op(names_.base.module).read(a.values).read(a.scale).read(b.values).read(b.scale);
  w_.write(op, out);
  const SymBytes padded = pads() ? of_a + of_b : SymBytes();
  const SymBytes held = (pads() || copies_a ? of_a : SymBytes()) +
                        (pads() || copies_b ? of_b : SymBytes()) + (repeats ? fp32(n) : SymBytes());
  const SymBytes result = w_.bytes(checked_multiply(m, n), dtype), inverses = inverse_a + inverse_b;
  // Before the result is there, and beside it.
  const SymBytes before =
      larger(padded + larger(copies_a ? of_a : SymBytes(), copies_b ? of_b : SymBytes()),
             behind ? held + products + inverses + one : SymBytes());
  const SymBytes beside = held + (behind ? products + one + one : inverses);
  op.scratch(larger(before, beside + result) - result);
  const WorkOfOp work = w_.b_.work();
  work.gemm(float8_gemm(m, n, k));
  const double moved =
      2 * (padded.real() + (copies_a ? of_a.real() : 0) + (copies_b ? of_b.real() : 0)) +
      (behind ? 2 * products.real() + 4 * m.real() * n.real() : 0);
  if (moved > 0) work.moves(moved, 2);
  work.compiled(behind ? 4 * m.real() * n.real() : 0);
  if (!w_.b_.keeps_blocks()) return op;
  BlockEvents events;  // what is not dropped is held to the end
  const auto pad_a = pads() ? events.take(of_a) : -1, pad_b = pads() ? events.take(of_b) : -1;
  const auto lay = [&](bool copies, std::int32_t pad, SymBytes bytes) {
    if (!copies) return;
    events.take(bytes);
    if (pad >= 0) events.drop(pad);
  };
  lay(copies_a, pad_a, of_a);
  lay(copies_b, pad_b, of_b);
  if (repeats) events.take(inverse_b);
  const auto first = events.take(inverse_a), second = events.take(inverse_b);
  if (behind) {
    events.take(products);
    for (const auto inverse : {first, second}) {
      events.take(one);
      events.drop(inverse);
    }
  }
  events.birth(out.tensor);
  events.birth(out.beyond);
  events.workspace();
  w_.b_.blocks(std::move(events));
  return op;
}

// Under autocast the module casts its input itself; the weight stays as it is stored.
void Float8Writer::forward(Ref input, Category category, bool stops, bool kept, GemmSaved& s) {
  const DType low = w_.regime_.compute;
  const SymInt outs = tokens() * part_.out;
  s = {};
  Ref read = input;
  if (input_ != low) {
    s.input = w_.make(names_.base.input_cast, tokens() * part_.in, low);
    auto cast = w_.op(names_.base.input_cast).write(s.input);
    w_.read(cast, input);
    w_.b_.work().compiled(0);
    read = {s.input};
  } else if (input.delta == 0) {
    s.input = input.tensor;
  }
  const Over over = by_rows() ? Over::rows : Over::all;
  const Operand x = cast(eight_.input, of_input(over), read);
  const Operand w = cast_weight(over, false);
  if (kept) {
    w_.op(names_.base.module).read(x.values).read(x.scale).read(w.values).read(w.scale);
    return void(w_.b_.work().moves(0, 0));
  }
  s.out = part_.bias ? w_.temporary(eight_.product, outs, low)
                     : w_.make(names_.base.out, outs, low, category);
  const Product product{tokens(), part_.out, part_.in, low, true, false, false};
  auto gemm = multiply(x, w, product, {s.out});
  w_.read(gemm, read);
  w_.take_workspace(gemm, true);
  if (!part_.bias || stops) return;
  TensorId bias = kNoTensor;
  if (w_.regime_.weight != low) {
    bias = w_.temporary(names_.bias.weight_cast, part_.out, low);
    w_.op(names_.bias.weight_cast).write(bias);
  }
  const TensorId before = std::exchange(s.out, w_.make(names_.base.out, outs, low, category));
  w_.op(names_.base.out).read(before).read(bias).write(s.out);
}

// What was added behind the GEMM: its gradient is a sum over the tokens, and is there first.
void Float8Writer::bias_backward(TensorId d_out) {
  if (!part_.bias || !part_.train_bias) return;
  const bool casts = w_.regime_.weight != w_.regime_.compute;
  const TensorId d_bias =
      casts ? w_.temporary(names_.bias.weight_grad_low, part_.out, w_.regime_.compute)
            : w_.sink_->begin(names_.bias, part_.out);
  const ColumnSumScratch scratch = w_.column_sum(tokens(), part_.out);
  w_.op(names_.bias.module).read(d_out).write(d_bias).scratch(scratch.total());
  if (w_.b_.keeps_blocks()) {
    BlockEvents events;
    events.birth(d_bias);
    for (const SymBytes block : {scratch.partial, scratch.counters})
      if (block > Bytes(0)) events.take(block);
    w_.b_.blocks(std::move(events));
  }
  if (casts)
    w_.widen(names_.bias, d_bias, part_.out, {});
  else
    w_.sink_->end(names_.bias, d_bias);
}

Sum Float8Writer::return_input(TensorId d_in, Sum sum, const Place& at) {
  const DType low = w_.regime_.compute;
  const bool casts = low != input_;
  const SymInt values = tokens() * part_.in;
  if (!at.into.none()) return w_.add_into(names_.base, d_in, casts, sum, at.into);
  d_in = w_.cast(names_.base.input_grad, d_in, values, low, input_);
  return w_.add_gradient(names_.base.grad_layout, sum, {d_in, !casts && !at.of_rows}, input_,
                         values);
}

// Both operands of either GEMM are cast anew; Python's frame holds the casts to its end. The
// weight's gradient is in the input's dtype, and cast to the weight's before the node returns.
Sum Float8Writer::backward(bool input_grad, const GemmSaved& s, TensorId d_out, Sum sum,
                           const Place& at) {
  const DType low = w_.regime_.compute;
  const SymInt t = tokens(), weights = checked_multiply(part_.in, part_.out);
  const bool casts_weight = w_.regime_.weight != low;
  const Ref input = s.input == kNoTensor ? at.input : Ref{s.input};
  w_.unpack();
  bias_backward(d_out);
  const Over over = by_rows() ? Over::rows : Over::all;
  const Operand d = cast(eight_.grad, of_grad(over), {d_out});
  const Operand w = cast_weight(wide_gradient() ? Over::all : over, true);
  const bool into = input_grad && !at.into.none() && input_ == low;
  const TensorId d_in =
      into ? kNoTensor : w_.temporary(names_.base.input_grad_low, t * part_.in, low);
  auto first =
      multiply(d, w, {t, part_.in, part_.out, low, false, false, true}, into ? at.into : Ref{d_in});
  w_.take_workspace(first, true);
  TensorId d_weight = casts_weight ? w_.temporary(names_.base.weight_grad_low, weights, low)
                                   : w_.sink_->begin(names_.base, weights);
  const auto hold = [&](OpBuilder op, std::span<const Operand> operands) {
    for (const Operand& of : operands) op.read(of.values).read(of.scale);
  };
  const auto end = [&](OpBuilder gemm) {
    hold(gemm, std::array{d, w});
    gemm.read(d_out).read(d_in);
    w_.read(gemm, input);
    ModuleWriter::release(gemm, at.held);
  };
  if (wide_gradient()) {
    auto gemm = w_.op(names_.base.module).write(d_weight);
    w_.b_.work().gemm(
        {low, static_cast<double>(part_.out), static_cast<double>(part_.in), t.real()});
    w_.take_workspace(gemm, false);
    end(gemm);
  } else {
    const Over columns = by_rows() ? Over::columns : Over::all;
    const Operand g = cast(eight_.grad_of_columns, of_grad(columns), {d_out});
    const Operand x = cast(eight_.input_of_columns, of_input(columns), input);
    auto gemm = multiply(g, x, {part_.out, part_.in, t, low, false, true, true}, {d_weight});
    end(gemm);
  }
  if (casts_weight) {
    w_.widen(names_.base, d_weight, weights, {});
    return input_grad ? return_input(d_in, sum, at) : sum;
  }
  if (input_grad) sum = return_input(d_in, sum, at);
  w_.sink_->end(names_.base, d_weight);
  return sum;
}

}  // namespace plimsoll::planner::pytorch
