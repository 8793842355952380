// torchtune's own head and loss: TransformerDecoder.forward runs the head on parts of each sequence
// (modules/transformer.py, chunked_output), and CEWithChunkedOutputLoss takes one part after the
// other (modules/loss/ce_chunked_output_loss.py). The decoder's frame holds the stream behind the
// last layer, and that of `unembed` the final norm's result, until all parts' logits are there;
// those are let go when the loss is. Backward, all losses come first, then the GEMMs, from the last
// part to the first.
#include <algorithm>
#include <optional>

#include "planner/stacks/pytorch/ends/head.h"

namespace plimsoll::planner::pytorch {

using models::Access;

namespace {

const LinearNames& kHead = end_names().head;

// Gradients of one weight by several GEMMs. The first is a view of what its GEMM made, to which
// nothing is added in place (input_buffer.cpp, can_accumulate_inplace); the sum takes its place.
class SumOfParts final : public GradientSink {
 public:
  SumOfParts(ProgramBuilder& b, const Regime& regime, GradientSink& whole)
      : b_(b), regime_(regime), whole_(whole) {}

  TensorId begin(const ModuleNames& names, std::int64_t elements, bool) override {
    elements_ = elements;
    return b_.tensor(names.weight_grad_low, storage(Count(elements), regime_.weight),
                     models::Category::temporaries);
  }
  bool keeps(std::int64_t) const override { return true; }
  void end(const ModuleNames& names, TensorId written) override {
    names_ = &names;
    if (first_ == kNoTensor) return void(first_ = written);
    if (sum_ == kNoTensor) {
      sum_ = whole_.begin(names, elements_, false);
      b_.op(names.weight_grad, Phase::backward).read(first_).read(written).write(sum_);
    } else {
      b_.op(names.weight_grad, Phase::backward).update(sum_).read(written);
    }
  }
  void finish() {
    if (sum_ != kNoTensor) whole_.end(*names_, sum_);
  }

 private:
  ProgramBuilder& b_;
  const Regime& regime_;
  GradientSink& whole_;
  const ModuleNames* names_ = nullptr;
  std::int64_t elements_ = 0;
  TensorId first_ = kNoTensor, sum_ = kNoTensor;
};

}  // namespace

// torch.chunk along the sequence: parts of one length, but the last.
void HeadWriter::divide_tokens() {
  const SymInt length = tokens_.length, part = ceil_divide(length, kHeadParts);
  std::int64_t count = kHeadParts;
  if (!(part * (kHeadParts - 1) < length)) count = ceil_divide(length, part);
  s_.head_parts.assign(static_cast<std::size_t>(count), {});
  for (HeadPart& of : s_.head_parts) of.tokens = tokens_.sequences * part;
  s_.head_parts.back().tokens = tokens_.sequences * (length - part * (count - 1));
}

// Under FSDP2 the head is a unit that is gathered for each part, forward and backward. The unit of
// the tail is the last part's forward, and the first one's backward, with which it is reduced.
void HeadWriter::declare_units() {
  std::vector<HeadPart>& parts = s_.head_parts;
  for (HeadPart& part : parts) part.unit = s_.tail;
  for (std::size_t i = 0; i + 1 < parts.size(); ++i) {
    Unit fresh = s_.tail;
    wrapper_.declare_gathers(fresh);
    parts[i].unit.cast_forward = fresh.cast_forward;
    parts[i].unit.gather_forward = fresh.gather_forward;
    parts[i].unit.full_forward = fresh.full_forward;
    Unit& next = parts[i + 1].unit;
    next.cast_backward = fresh.cast_backward;
    next.gather_backward = fresh.gather_backward;
    next.full_backward = fresh.full_backward;
    next.reduce_in = kNoTensor;
  }
}

// A part of several sequences is laid out for the GEMM; with a frozen weight it is a batched one,
// which reads it where it is (ATen/native/LinearAlgebra.cpp, should_fold).
void HeadWriter::part_head_forward(HeadPart& part, Ref gathered) {
  wrapper_.before_forward(part.unit, gathered);
  const DType dtype = head_input();
  TensorId input = s_.final_norm.out;
  if (tokens_.sequences > 1 && parts_.head.train_weight) {
    part.input = b_.tensor(kHead.base.input_layout,
                           layer_.bytes(checked_multiply(part.tokens, d_.hidden), dtype),
                           Category::activations);
    b_.op(kHead.base.input_layout, Phase::forward).read(input).write(part.input);
    input = part.input;
  }
  layer_.set_tokens(part.tokens);
  layer_.linear_forward(kHead, parts_.head, {input}, dtype, Category::logits, part.head);
  layer_.set_tokens(tokens_.total());
  if (part.unit.reshards) wrapper_.after_forward(part.unit);
}

// What the frames of the model hold goes as they return.
void HeadWriter::leave_after_head() {
  b_.op("model", Phase::forward)
      .release(s_.final_norm.out)
      .touch(s_.runs.back().out, -1, kNoTensor, Access::release);
  wrapper_.after_model();
}

// The recipes' _loss_step: hstack of the labels but each first one, and one that is ignored.
void HeadWriter::shift_labels() {
  s_.end.targets = b_.tensor("loss.labels.shifted", layer_.bytes(tokens_.total(), DType::int64),
                             Category::activations);
  b_.op("loss.labels", Phase::forward).write(s_.end.targets);
}

// (labels != ignore_index).sum(): booleans, which the sum casts; then the labels of each part.
void HeadWriter::count_tokens() {
  const SymInt t = tokens_.total();
  s_.end.counted = b_.tensor("loss.tokens", Bytes(8), Category::activations);
  b_.op("loss.tokens", Phase::forward)
      .read(s_.end.targets)
      .write(s_.end.counted)
      .scratch(layer_.bytes(t, DType::boolean) + layer_.bytes(t, DType::int64));
  for (HeadPart& part : s_.head_parts) {
    part.targets = s_.end.targets;
    if (tokens_.sequences == 1) continue;
    part.targets = b_.tensor("loss.labels.part", layer_.bytes(part.tokens, DType::int64),
                             Category::activations);
    b_.op("loss.labels", Phase::forward).read(s_.end.targets).write(part.targets);
  }
}

// cross_entropy's frame holds the logits in fp32.
void HeadWriter::part_loss_forward(HeadPart& part, TensorId& sum) {
  layer_.tape_forward(logits_part(), logits_counts(part.tokens), std::array{Ref{part.head.out}},
                      part.logits);
  const TensorId wide = part.logits.out;
  const TensorId loss = b_.tensor("loss.part", Bytes(4), Category::temporaries);
  layer_.tape_forward(entropy_part(), entropy_counts(part.tokens, part.targets),
                      std::array{Ref{wide}, Ref{part.targets}}, part.entropy, false, {}, {loss});
  const bool first = sum == kNoTensor;
  if (first) sum = b_.tensor("loss.sum", Bytes(4), Category::activations);
  auto add = b_.op("loss.sum", Phase::forward).read(loss).release(wide);
  first ? add.write(sum) : add.update(sum);
}

void HeadWriter::parts_forward() {
  divide_tokens();
  if (!s_.tail.empty()) declare_units();
  Ref gathered{s_.runs.back().units.back().gather_forward, -1};
  for (HeadPart& part : s_.head_parts) {
    part_head_forward(part, gathered);
    gathered = {part.unit.gather_forward};
  }
  leave_after_head();
  shift_labels();
  count_tokens();
  TensorId sum = kNoTensor;
  for (HeadPart& part : s_.head_parts) part_loss_forward(part, sum);
  s_.end.loss = b_.tensor("loss", Bytes(4), Category::activations);
  b_.op("loss", Phase::forward).read(sum).read(s_.end.counted).write(s_.end.loss);
  auto returned = b_.op("loss.parts", Phase::forward).release(s_.end.targets);
  for (const HeadPart& part : s_.head_parts) returned.release(part.head.out);
  b_.work().moves(0, 0);
}

TensorId HeadWriter::parts_backward() {
  const TensorId seed = b_.tensor("loss.sum.grad", Bytes(4), Category::temporaries);
  b_.op("loss", Phase::backward).read(s_.end.seed).read(s_.end.counted).write(seed);
  std::vector<HeadPart>& parts = s_.head_parts;
  for (std::size_t i = parts.size(); i-- > 0;) {
    HeadPart& part = parts[i];
    const std::array<Ref, 2> given{{{kNoTensor}, {part.targets}}};
    const TensorId d =
        layer_.tape_backward(entropy_part(), entropy_counts(part.tokens, part.targets), given,
                             part.entropy, {.result = seed});
    const TensorId d_low = layer_.tape_backward(logits_part(), logits_counts(part.tokens), given,
                                                part.logits, {.result = d});
    part.d_logits = d_low != kNoTensor ? d_low : d;
  }
  if (!s_.tail.reshards) wrapper_.before_head_backward();
  s_.unit = s_.head_unit;
  const bool input_grad = s_.final_grad() || parts_.final_norm.trains();
  SumOfParts sum(b_, regime_, wrapper_);
  if (parts.size() > 1) layer_.set_sink(&sum);
  std::vector<TensorId> d_inputs;
  for (std::size_t i = parts.size(); i-- > 0;) {
    HeadPart& part = parts[i];
    wrapper_.gather_again(part.unit);
    wrapper_.before_backward(part.unit);
    if (i == 0 && s_.tail.reshards) wrapper_.before_head_backward();
    const TensorId input = part.input != kNoTensor ? part.input : s_.final_norm.out;
    layer_.set_tokens(part.tokens);
    d_inputs.push_back(layer_
                           .linear_backward(kHead, parts_.head, head_input(), input_grad, part.head,
                                            part.d_logits, {}, {{input}, {}, {}})
                           .tensor);
    if (i > 0) wrapper_.after_backward(part.unit, {});
  }
  layer_.set_tokens(tokens_.total());
  sum.finish();
  layer_.set_sink(&wrapper_);
  if (!s_.tail.empty()) {
    s_.tail.full_backward = parts.front().unit.full_backward;
    wrapper_.after_backward(s_.tail, {});
  }
  if (!input_grad) return kNoTensor;
  const TensorId d =
      b_.tensor(kHead.base.input_grad,
                layer_.bytes(checked_multiply(tokens_.total(), d_.hidden), head_input()),
                Category::temporaries);
  auto joined = b_.op(kHead.base.input_grad, Phase::backward);
  for (const TensorId part : d_inputs) joined.read(part);
  joined.write(d);
  return d;
}

}  // namespace plimsoll::planner::pytorch
