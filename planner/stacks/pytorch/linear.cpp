// GEMMs with a weight, dropout, and gradients that meet.
#include "planner/stacks/pytorch/adapter.h"
#include "planner/stacks/pytorch/float8.h"
#include "planner/stacks/pytorch/modules.h"
#include "planner/stacks/pytorch/vectors.h"

namespace plimsoll::planner::pytorch {

void ModuleWriter::take_workspace(OpBuilder gemm, bool adds_bias) {
  const std::size_t thread = phase_ == Phase::forward ? 0 : 1;
  gemm.read(std::exchange(workspaces_[thread], kNoTensor));
  if (adds_bias) gemm.read(std::exchange(workspaces_[2 + thread], kNoTensor));
}

TensorId ModuleWriter::copy(const char* name, TensorId from, SymInt values, DType dtype,
                            Category category) {
  const TensorId to = make(name, values, dtype, category);
  op(name).read(from).write(to);
  return to;
}

TensorId ModuleWriter::into_zeros(const char* name, TensorId d, SymInt values, DType dtype,
                                  int slices) {
  for (int i = 0; i < slices; ++i) {
    d = copy(name, d, values, dtype);
    b_.work().moves(3 * bytes(values, dtype).real(), 2);
  }
  return d;
}

TensorId ModuleWriter::cast(const char* name, TensorId from, SymInt values, DType have, DType want,
                            Category category) {
  if (have == want || from == kNoTensor) return from;
  const TensorId to = copy(name, from, values, want, category);
  b_.work().compiled(0);
  return to;
}

Sum ModuleWriter::add_gradient(const char* name, Sum sum, Sum next, DType dtype, SymInt values) {
  if (sum.tensor == kNoTensor) return next;
  if (next.tensor == kNoTensor) return sum;
  if (!sum.view) {
    op(name).update(sum.tensor).read(next.tensor);
    return sum;
  }
  const TensorId fresh = temporary(name, values, dtype);
  op(name).read(sum.tensor).read(next.tensor).write(fresh);
  return {fresh, false};
}

// F.dropout in training: the mask, one byte a value, is saved; the input dies. p = 0 returns its
// input.
TensorId ModuleWriter::dropout(const char* name, const char* mask_name, double p, TensorId from,
                               SymInt values, DType dtype, TensorId& mask) {
  mask = kNoTensor;
  if (p == 0) return from;
  mask = make(mask_name, values, DType::boolean);
  const TensorId dropped = make(name, values, dtype);
  op(name).read(from).write(mask).write(dropped);
  return dropped;
}

TensorId ModuleWriter::dropout_backward(const char* name, TensorId d, TensorId mask, SymInt values,
                                        DType dtype) {
  if (mask == kNoTensor || d == kNoTensor) return d;
  const TensorId d_in = temporary(name, values, dtype);
  op(name).read(d).read(mask).write(d_in);
  return d_in;
}

namespace {
double cast_bytes(SymInt values, DType from, DType to) {
  return (storage(values, from) + storage(values, to)).real();
}
}  // namespace

namespace {
// Of its activations, which have a row for each token.
template <class Part>
Gemm gemm_of_rows(const Part& part, DType dtype, SymInt m, SymInt n, SymInt k) {
  constexpr std::int64_t kAligned = 8;  // values of 16 bits in 16 bytes
  Gemm gemm = gemm_of(dtype, m, n, k);
  gemm.unaligned = bits(dtype) == 16 && (part.in % kAligned != 0 || part.out % kAligned != 0);
  return gemm;
}

WeightGemm base_gemm(const LinearPart& part, const Regime& regime) {
  return {.in = part.in,
          .out = part.out,
          .weight = part.of_adapter ? regime.adapter : regime.weight,
          .trains_weight = part.train_weight,
          .bias = part.bias,
          .trains_bias = part.bias && part.train_bias,
          .adapter = part.of_adapter,
          .conv1d = part.conv1d};
}
}  // namespace

// F.linear. Under autocast the fp32 weight is cast once per forward (autocast_mode.cpp caches casts
// of leaves that require gradients, until the outermost context exits) and the input anew by every
// linear. Autograd saves the input as the GEMM read it where the weight is trained, and the
// weight where the input requires a gradient.
void ModuleWriter::gemm_forward(const ModuleNames& names, const ModuleNames& bias,
                                const WeightGemm& part, Ref input, DType input_dtype,
                                Category category, bool stops, GemmSaved& s) {
  const SymInt t = tokens_.total();
  const DType dtype = regime_.gemm_dtype(part.weight);
  if (part.weight_is_cast)
    s = {.weight_cast = s.weight_cast, .bias_cast = s.bias_cast};
  else
    s = {};
  auto gemm = op(names.module);
  const bool casts_weight = dtype != part.weight && !part.weight_is_cast;
  if (part.weight_is_cast) gemm.read(s.weight_cast).read(s.bias_cast);
  if (casts_weight) {
    s.weight_cast = temporary(names.weight_cast, part.in * part.out, dtype);
    if (part.bias) s.bias_cast = temporary(bias.weight_cast, part.out, dtype);
    gemm.write(s.weight_cast).write(s.bias_cast);
  }
  read(gemm, input);
  const WorkOfOp work = b_.work();
  if (casts_weight) work.casts(cast_bytes(part.in * part.out, part.weight, dtype));
  if (dtype != input_dtype) {
    work.casts(cast_bytes(t * part.in, input_dtype, dtype));
    s.input = make(names.input_cast, t * part.in, dtype,
                   part.trains_weight ? Category::activations : Category::temporaries);
    gemm.write(s.input);
  } else if (input.delta == 0) {
    s.input = input.tensor;
  }
  if (stops) return void(work.moves(0, 0));
  work.gemm(gemm_of_rows(part, dtype, t, part.out, part.in));
  s.out = make(names.out, t * part.out, dtype, category);
  gemm.write(s.out);
  take_workspace(gemm, part.bias);
  if (hooks_.any()) hooks_.save_gemm(names, part, t, dtype, input_grad_, input, s);
}

// A 16-bit gradient becomes one in the weight's dtype.
void ModuleWriter::widen(const ModuleNames& of, TensorId low, std::int64_t elements,
                         const WeightGemm& part) {
  if (low == kNoTensor) return;
  if (part.weight_is_cast) return late_.push_back({&of, low, elements});
  const TensorId grad = sink_->begin(of, elements, part.adapter);
  op(of.weight_grad).read(low).write(grad);
  sink_->end(of, grad);
}

void ModuleWriter::widen_late() {
  for (const LateGradient& late : late_)
    widen(*late.of, late.low, late.elements, {.adapter = true});
  late_.clear();
}

// One node makes all three gradients. What was cast before the GEMM is cast back after it: the
// input's gradient first and then added to what other users of the input sent (its cast was the
// last to be made), then the weight's, then the bias's (GPT-2's Conv1D: the bias's first).
Sum ModuleWriter::gemm_backward(const ModuleNames& names, const ModuleNames& bias,
                                const WeightGemm& part, DType input_dtype, bool input_grad,
                                const GemmSaved& s, TensorId d_out, Sum sum, const Place& at) {
  const SymInt t = tokens_.total(), weights = part.in * part.out;
  const DType dtype = regime_.gemm_dtype(part.weight);
  const bool casts = dtype != part.weight;
  unpack();
  TensorId d_weight = kNoTensor, d_bias = kNoTensor, d_in = kNoTensor;
  if (part.trains_weight)
    d_weight = casts ? temporary(names.weight_grad_low, weights, dtype)
                     : sink_->begin(names, weights, part.adapter);
  if (part.trains_bias)
    d_bias = casts ? temporary(bias.weight_grad_low, part.out, dtype)
                   : sink_->begin(bias, part.out, part.adapter);
  const bool casts_in = dtype != input_dtype, ends = input_grad && !at.into.none();
  if (input_grad && (casts_in || !ends)) d_in = temporary(names.input_grad_low, t * part.in, dtype);
  hooks_.bring(s.node);
  auto gemm = op(names.module);
  hooks_.attach(gemm, s.node);
  gemm.read(d_out).write(d_weight).write(d_in);
  const WorkOfOp work = b_.work();
  if (input_grad) work.gemm(gemm_of_rows(part, dtype, t, part.in, part.out));
  if (part.trains_weight) work.gemm(gemm_of_rows(part, dtype, part.in, part.out, t));
  if (ends && !casts_in) write(gemm, at.into);
  take_workspace(gemm, false);
  if (part.trains_weight || rules_.zero3_linear)
    read(gemm, hooks_.brought(s.node, s.input == kNoTensor ? at.input : Ref{s.input}));
  if (input_grad) gemm.read(hooks_.brought(s.node, s.weight_cast));
  // addmm's backward makes the gradients of the matrices and then the sum; in a checkpoint what was
  // saved is gone before that.
  if (d_bias != kNoTensor) {
    BlockEvents events;
    if (b_.keeps_blocks())
      for (const TensorId matrix : {d_in, at.into.tensor, at.into.beyond, d_weight})
        events.birth(matrix);
    if (through_hooks() && b_.keeps_blocks()) b_.blocks(std::exchange(events, {}));
    if (!through_hooks()) work.moves(bytes(t * part.out, dtype).real());
    auto sums = through_hooks() ? op(bias.module).read(d_out) : gemm;
    const ColumnSumScratch scratch = column_sum(t, part.out);
    sums.write(d_bias).scratch(scratch.total());
    if (b_.keeps_blocks()) {
      events.birth(d_bias);
      for (const SymBytes block : {scratch.partial, scratch.counters})
        if (block > Bytes(0)) events.take(block);
      b_.blocks(std::move(events));
    }
    release(sums, at.held);
  } else {
    release(gemm, at.held);
  }
  node_done();
  if (casts && part.conv1d) widen(bias, d_bias, part.out, part);
  // With a bias the input was flattened before the weight was transposed: backward the input's
  // gradient comes last. The weight's comes by way of its transpose, behind the bias's.
  if (part.bias && !casts && sink_->acts()) {
    if (d_bias != kNoTensor) sink_->end(bias, std::exchange(d_bias, kNoTensor));
    if (d_weight != kNoTensor) sink_->end(names, std::exchange(d_weight, kNoTensor));
  }
  if (ends) {
    sum = add_into(names, d_in, casts_in, sum, at.into);
  } else if (input_grad) {
    d_in = cast(names.input_grad, d_in, t * part.in, dtype, input_dtype);
    if (!at.of_view)
      sum = add_gradient(names.grad_layout, sum, {d_in, !casts_in && !at.of_rows}, input_dtype,
                         t * part.in);
  }
  if (casts) {
    widen(names, d_weight, weights, part);
    if (!part.conv1d) widen(bias, d_bias, part.out, part);
  } else {
    const bool bias_last = rules_.zero3_linear && !part.conv1d;
    if (d_bias != kNoTensor && !bias_last) sink_->end(bias, d_bias);
    if (d_weight != kNoTensor) sink_->end(names, d_weight);
    if (d_bias != kNoTensor && bias_last) sink_->end(bias, d_bias);
  }
  if (at.of_view && input_grad)
    sum = add_gradient(names.grad_layout, sum, {d_in, !casts_in}, input_dtype, t * part.in);
  return sum;
}

// The last to add to the gradient of the layer's input: that is a tensor of the layer's own here,
// where autograd adds in place to what flowed past. Either way one of the two operands stays.
Sum ModuleWriter::add_into(const ModuleNames& names, TensorId d_in, bool casts, Sum sum, Ref into) {
  if (casts) {
    auto cast = op(names.input_grad).read(d_in);
    write(cast, into);
  }
  if (sum.tensor != kNoTensor)
    op(names.grad_layout)
        .read(sum.tensor)
        .touch(into.tensor, into.delta, into.beyond, models::Access::update);
  return {};
}

void ModuleWriter::linear_forward(const LinearNames& names, const LinearPart& part, Ref input,
                                  DType input_dtype, Category category, LinearSaved& s, bool stops,
                                  TensorId kept) {
  VectorWriter vectors(*this, names, part, input_dtype);
  if (is_ia3(part.adapter)) return vectors.ia3_forward(input, category, stops, s);
  if (part.float8) {
    Float8Writer(*this, names, part, input_dtype)
        .forward(input, category, stops, kept != kNoTensor, s.base);
    if (kept != kNoTensor) s.base.out = kept;
    s.out = s.base.out;
    return;
  }
  const bool adapted = part.adapted();
  input_grad_ = s.input_grad;
  base_forward(names, part, input, input_dtype, category, (stops && !adapted) || kept != kNoTensor,
               s.base);
  if (kept != kNoTensor) s.base.out = kept;
  s.out = s.base.out;
  if (part.adapter == Adapter::vera)
    vectors.vera_forward(input, category, stops, s);
  else if (adapted)
    adapter_forward(names, part, input, input_dtype, category, stops, s);
}

void ModuleWriter::base_forward(const LinearNames& names, const LinearPart& part, Ref input,
                                DType input_dtype, Category category, bool stops, GemmSaved& s) {
  if (part.packed != nullptr && part.packed->gemm == models::PackedGemm::int8)
    int8_forward(names, part, input, input_dtype, category, s);
  else if (is_torchao(part))
    torchao_forward(names, part, input, input_dtype, category, stops, s);
  else if (is_awq(part))
    awq_forward(names, part, input, category, s);
  else if (part.packed != nullptr)
    packed_forward(names, part, input, input_dtype, category, s);
  else
    gemm_forward(names.base, names.bias, base_gemm(part, regime_), input, input_dtype, category,
                 stops, s);
}

Sum ModuleWriter::linear_backward(const LinearNames& names, const LinearPart& part,
                                  DType input_dtype, bool input_grad, const LinearSaved& s,
                                  TensorId d_out, Sum sum, const Place& at) {
  if (part.float8)
    return Float8Writer(*this, names, part, input_dtype)
        .backward(input_grad, s.base, d_out, sum, at);
  VectorWriter vectors(*this, names, part, input_dtype);
  if (is_ia3(part.adapter)) return vectors.ia3_backward(input_grad, s, d_out, sum, at);
  if (part.adapter == Adapter::vera) return vectors.vera_backward(input_grad, s, d_out, sum, at);
  if (part.adapted())
    return adapter_backward(names, part, input_dtype, input_grad, s, d_out, sum, at);
  return base_backward(names, part, input_dtype, input_grad, s.base, d_out, sum, at);
}

Sum ModuleWriter::base_backward(const LinearNames& names, const LinearPart& part, DType input_dtype,
                                bool input_grad, const GemmSaved& s, TensorId d_out, Sum sum,
                                const Place& at) {
  if (is_torchao(part) && input_grad)
    return torchao_backward(names, part, {input_dtype, input_grad, d_out, sum, at}, s);
  Place place = at;
  if ((is_awq(part) || is_hqq(part)) && input_grad) {
    unpack();  // what the function keeps is then the recomputed input
    if (s.input != kNoTensor) place.input = {s.input};
  }
  const PackedGradient arrives{input_dtype, input_grad, d_out, sum, place};
  if (is_awq(part) && input_grad) return awq_backward(names, part, arrives);
  if (part.packed != nullptr) return packed_backward(names, part, arrives);
  return gemm_backward(names.base, names.bias, base_gemm(part, regime_), input_dtype, input_grad, s,
                       d_out, sum, at);
}

}  // namespace plimsoll::planner::pytorch
