// A classifier of sequences in the head's place, its loss, and their backward.
//
// Decoders (transformers modeling_layers.py, GenericForSequenceClassification): logits of every
// token, of which each sequence's last one that is no padding is picked. BERT
// (models/bert/modeling_bert.py, BertPooler and BertForSequenceClassification): a product and tanh
// of the first token, dropout, then the logits of the sequence alone. Both take cross entropy of
// them as they are (loss/loss_utils.py, ForSequenceClassificationLoss).
#include "planner/stacks/pytorch/ends/head.h"
#include "planner/stacks/pytorch/kernels.h"

namespace plimsoll::planner::pytorch {

using tape::Extent;
using tape::Function;
using tape::ValueId;

namespace {
const LinearNames& kHead = end_names().head;
const LinearNames& kPooler = end_names().head_transform;
constexpr const char* kPicked = "score";
constexpr const char* kActivated = "pooler.activation";
constexpr const char* kDropped = "dropout";

// kAll: logits of every token.
enum : Extent { kTokens = 1, kLength, kSequences, kClasses, kOne, kSort };

// Which token is the last: the largest of the places that are multiplied with what is no padding.
Function picked_function(DType dtype) {
  Function f;
  f.part_operations(false);
  const ValueId logits = f.given({tape::kAll, dtype}, true, ".logits");
  const ValueId ids = f.given({kTokens, DType::int64}, false);
  const ValueId compared = f.named(f.integers(ids, {kTokens, DType::boolean}), ".real");
  const ValueId real = f.named(f.integers(compared, {kTokens, DType::int32}), ".real.int32");
  const ValueId places = f.named(f.integers(real, {kLength, DType::int32}), ".places");
  f.also_result(real);  // local variables of the model's forward
  f.also_result(places);
  const ValueId masked = f.named(f.integers(places, {kTokens, DType::int32}), ".places.real");
  const ValueId last = f.named(f.integers(masked, {kSequences, DType::int64}), ".last");
  const ValueId rows = f.named(f.integers(last, {kSequences, DType::int64}), ".rows");
  f.result(f.named(f.index(logits, last, kClasses, {kOne, kSort}), ".picked"));
  f.also_along(rows);
  return f;
}
}  // namespace

TapePart HeadWriter::picked_part() const {
  static tape::Rules<1u << 2> rules;
  const DType dtype = regime_.compute;
  return tape_part(kPicked,
                   rules.find(tape::dtype_bits(dtype), [&] { return picked_function(dtype); }));
}

TapeCounts HeadWriter::picked_counts() const {
  const SymInt all = checked_multiply(tokens_.total(), d_.labels);
  TapeCounts counts{};
  counts[tape::kAll] = all;
  counts[kTokens] = tokens_.total();
  counts[kLength] = tokens_.length;
  counts[kSequences] = tokens_.sequences;
  counts[kClasses] = checked_multiply(tokens_.sequences, d_.labels);
  counts[kOne] = 1;
  counts[kSort] = pair_sort_bytes(tokens_.sequences, bits_of(tokens_.total() - 1));
  return counts;
}

// Tokens whose logits the head makes.
SymInt HeadWriter::classified_tokens() const {
  return d_.pooled ? tokens_.sequences : tokens_.total();
}

// The first token is a view of what the last layer made; a result goes as its name is bound anew.
void HeadWriter::pool() {
  layer_.set_tokens(tokens_.sequences);
  layer_.linear_forward(kPooler, parts_.head_transform, {s_.runs.back().out, -1}, regime_.residual,
                        models::Category::activations, s_.head_transform);
  const SymInt n = checked_multiply(tokens_.sequences, d_.hidden);
  s_.end.activated =
      b_.tensor(kActivated, storage(n, regime_.compute), models::Category::activations);
  b_.op(kActivated, Phase::forward).read(s_.head_transform.out).write(s_.end.activated);
  layer_.set_tokens(tokens_.total());
}

TensorId HeadWriter::drop_pooled() {
  if (d_.classifier_dropout == 0) return s_.end.activated;
  const SymInt n = checked_multiply(tokens_.sequences, d_.hidden);
  s_.end.dropout_mask = b_.tensor("dropout.mask", SymBytes(n), models::Category::activations);
  s_.end.dropped = b_.tensor(kDropped, storage(n, regime_.compute), models::Category::activations);
  b_.op(kDropped, Phase::forward)
      .read(s_.end.activated)
      .write(s_.end.dropout_mask)
      .write(s_.end.dropped);
  return s_.end.dropped;
}

void HeadWriter::classifier_forward() {
  s_.end.dropped = s_.end.dropout_mask = s_.end.targets = kNoTensor;
  const TensorId read = d_.pooled ? drop_pooled() : s_.final_norm.out;
  const DType dtype = d_.pooled ? regime_.compute : head_input();
  layer_.set_tokens(classified_tokens());
  layer_.linear_forward(kHead, parts_.head, {read}, dtype, models::Category::logits, s_.head);
  layer_.set_tokens(tokens_.total());
  s_.end.returned_logits = s_.head.out;
  if (!d_.pooled) {
    layer_.tape_forward(picked_part(), picked_counts(), std::array{Ref{s_.head.out}, Ref{}},
                        s_.end.logits);
    s_.end.returned_logits = s_.end.logits.out;
  }
  s_.end.loss = b_.tensor("loss", storage(1, loss_dtype()), models::Category::activations);
  layer_.tape_forward(entropy_part(), entropy_counts(tokens_.sequences, kNoTensor),
                      std::array{Ref{s_.end.returned_logits}, Ref{}}, s_.end.entropy, false, {},
                      {s_.end.loss});
}

// What the model's forward held.
void HeadWriter::release_classifier(OpBuilder& returned) const {
  if (d_.pooled) {
    returned.release(s_.end.activated).release(s_.end.dropped);
    return;
  }
  returned.release(s_.head.out).release(s_.end.logits.also[0]).release(s_.end.logits.also[1]);
}

// Returns the gradient of the last norm's result, or of what the pooler made.
TensorId HeadWriter::classifier_backward() {
  TensorId d = layer_.tape_backward(entropy_part(), entropy_counts(tokens_.sequences, kNoTensor),
                                    std::array<Ref, 2>{}, s_.end.entropy, {.result = s_.end.seed});
  if (!d_.pooled)
    d = layer_.tape_backward(picked_part(), picked_counts(), std::array<Ref, 2>{}, s_.end.logits,
                             {.result = d});
  if (!s_.loss_prefetches) wrapper_.before_head_backward();
  s_.unit = s_.head_unit;
  layer_.set_tokens(classified_tokens());
  const bool pooled_grad = s_.final_grad() || parts_.head_transform.trains();
  const TensorId before = d_.pooled && s_.end.dropped == kNoTensor ? s_.end.activated
                          : d_.pooled                              ? s_.end.dropped
                                                                   : s_.final_norm.out;
  d = layer_
          .linear_backward(kHead, parts_.head, d_.pooled ? regime_.compute : head_input(),
                           d_.pooled ? pooled_grad : s_.final_grad() || parts_.final_norm.trains(),
                           s_.head, d, {}, {{before}, d_.pooled ? Ref{} : norm_gradient_into(), {}})
          .tensor;
  layer_.set_tokens(tokens_.total());
  return d;
}

// Through dropout, tanh and the product, into zeros of all tokens.
void HeadWriter::pooled_back(TensorId d) {
  const SymInt n = checked_multiply(tokens_.sequences, d_.hidden);
  const auto through = [&](const char* op, const char* name, TensorId beside) {
    const TensorId made =
        b_.tensor(name, storage(n, regime_.compute), models::Category::temporaries);
    b_.op(op, Phase::backward).read(d).read(beside).write(made);
    d = made;
  };
  if (s_.end.dropout_mask != kNoTensor) through(kDropped, "dropout.grad", s_.end.dropout_mask);
  through(kActivated, "pooler.activation.grad", s_.end.activated);
  s_.unit = s_.norm_unit;
  layer_.set_tokens(tokens_.sequences);
  const Sum first =
      layer_.linear_backward(kPooler, parts_.head_transform, regime_.residual, s_.final_grad(),
                             s_.head_transform, d, {}, {{s_.runs.back().out, -1}, {}, {}});
  layer_.set_tokens(tokens_.total());
  if (!s_.final_grad()) return;
  const Ref all{s_.runs.back().d_out, -1};
  b_.op("pooler", Phase::backward)
      .read(first.tensor)
      .touch(all.tensor, all.delta, all.beyond, models::Access::write);
  b_.work().moves(2 * layer_.bytes(n, regime_.residual).real() + s_.stream_bytes().real());
}

}  // namespace plimsoll::planner::pytorch
