// The head and cross entropy of classes that are divided among ranks: loss_parallel().
//
// torch/distributed/tensor/parallel/loss.py, _log_softmax_handler, _nll_loss_forward and
// _nll_loss_and_log_softmax_backward: maximum and sum of exponentials are all-reduced, and so is
// each token's log-probability, which one rank has; the logits' gradient is made in place of those
// kernels that PyTorch has for whole rows. `valid`, `safe`: targets that count, and 0 for others;
// `own`: their numbers among this rank's classes, for those of other ranks 0 (placement_types.py,
// _MaskPartial).
#include "planner/stacks/pytorch/ends/head.h"
#include "planner/stacks/pytorch/sequence_parallel.h"

namespace plimsoll::planner::pytorch {

namespace {

const LinearNames& kHead = end_names().head;
const SequenceNames& kGathered = end_names().head_input;

// Small ops of one phase, one kernel each, whose results are temporaries.
class Ops {
 public:
  Ops(ProgramBuilder& b, Phase phase) : b_(b), phase_(phase) {}
  TensorId make(const char* name, SymInt values, DType dtype, std::initializer_list<TensorId> from,
                SymBytes scratch = {}, Category category = Category::temporaries) {
    const TensorId made = b_.tensor(name, b_.rounded(storage(values, dtype)), category);
    auto op = b_.op(name, phase_);
    for (const TensorId t : from) op.read(t);
    op.write(made).scratch(scratch);
    return made;
  }
  // What other ranks' summands, or maxima, make of it.
  TensorId all_reduce(const char* name, SymInt values, DType dtype, TensorId from) {
    const TensorId made = make(name, values, dtype, {from});
    b_.work().moves(0, 0);
    return made;
  }
  // where(valid, x, scalar): the condition, and the scalar as a tensor, are there while it runs.
  TensorId where(const char* name, SymInt values, DType dtype,
                 std::initializer_list<TensorId> from) {
    const TensorId valid = make("loss.valid", values, DType::boolean, {});
    const TensorId made = make(name, values, dtype, from, b_.rounded(storage(Count(1), dtype)));
    b_.op(name, phase_).release(valid);
    b_.work().moves(0, 0);
    return made;
  }
  // The targets' numbers among own classes, and, until `others` goes, whose are others'.
  struct Own {
    TensorId ids, others;
  };
  Own own(SymInt tokens, TensorId safe) {
    const TensorId below = make("loss.below", tokens, DType::boolean, {safe});
    const TensorId above = make("loss.above", tokens, DType::boolean, {safe});
    const TensorId others = make("loss.others", tokens, DType::boolean, {below, above});
    const TensorId copied = make("loss.own.copy", tokens, DType::int64, {safe});
    return {make("loss.own", tokens, DType::int64, {copied}), others};
  }

 private:
  ProgramBuilder& b_;
  Phase phase_;
};

}  // namespace

TensorId HeadWriter::parallel_head() {
  const SymInt values = checked_multiply(tokens_.total(), d_.hidden);
  s_.end.gathered =
      SequenceWriter(layer_).gather(kGathered.by_rank, kGathered.out, {s_.final_norm.out}, values,
                                    head_input(), Category::activations);
  layer_.linear_forward(kHead, parts_.head, {s_.end.gathered}, head_input(), Category::logits,
                        s_.head);
  b_.op("model", Phase::forward).release(s_.final_norm.out);
  b_.work().moves(0, 0);
  return s_.head.out;
}

TensorId HeadWriter::parallel_log_softmax(TensorId wide) {
  const SymInt rows = tokens_.total(), all = checked_multiply(rows, d_.vocab);
  constexpr DType kWide = DType::fp32;
  Ops ops(b_, Phase::forward);
  const TensorId own_most = ops.make("loss.max.own", rows, kWide, {wide});
  const TensorId most = ops.all_reduce("loss.max", rows, kWide, own_most);
  const TensorId shifted =
      ops.make("loss.logits.shifted", all, kWide, {wide, most}, {}, Category::logits);
  const TensorId exponentials = ops.make("loss.exp", all, kWide, {shifted}, {}, Category::logits);
  const TensorId own_sum = ops.make("loss.sum.own", rows, kWide, {exponentials});
  const TensorId sum = ops.all_reduce("loss.sum", rows, kWide, own_sum);
  const TensorId log = ops.make("loss.log", rows, kWide, {sum});
  const TensorId made =
      ops.make("loss.log_softmax", all, kWide, {shifted, log}, {}, Category::logits);
  b_.op("loss.log_softmax", Phase::forward).release(most).release(sum);
  b_.work().moves(0, 0);
  return made;
}

void HeadWriter::parallel_nll(TensorId log_softmax) {
  const SymInt rows = tokens_.total();
  Ops ops(b_, Phase::forward);
  const TensorId safe = ops.where("loss.safe", rows, DType::int64, {});
  const Ops::Own own = ops.own(rows, safe);
  const TensorId found = ops.make("loss.found", rows, DType::fp32, {log_softmax, own.ids});
  const double tokens = rows.real();
  b_.work().moves((8 + 4 + 4) * tokens);  // of a row one value, by its number
  b_.op("loss.found", Phase::forward).update(found).read(own.others);
  const TensorId summed = ops.all_reduce("loss.found.all", rows, DType::fp32, found);
  const TensorId negative = ops.make("loss.negative", rows, DType::fp32, {summed});
  const TensorId losses = ops.where("loss.nll", rows, DType::fp32, {negative});
  const TensorId valid = ops.make("loss.valid", rows, DType::boolean, {});
  const TensorId count =
      ops.make("loss.count", 1, DType::int64, {valid}, layer_.bytes(rows, DType::int64));
  s_.end.counted =
      ops.make("loss.total_weight", 1, DType::fp32, {count}, {}, Category::activations);
  const TensorId total = ops.make("loss.total", 1, DType::fp32, {losses});
  s_.end.loss = ops.make("loss", 1, DType::fp32, {total}, {}, Category::activations);
  b_.op("loss", Phase::forward)
      .release(safe)
      .release(own.ids)
      .release(found)
      .release(summed)
      .release(losses);
  b_.work().moves(0, 0);
}

void HeadWriter::parallel_forward() {
  const TensorId logits = parallel_head();
  wrapper_.after_model();
  s_.end.returned_logits = logits;
  s_.end.upcast_logits =
      b_.tensor("loss.logits.fp32", layer_.fp32(checked_multiply(tokens_.total(), d_.vocab)),
                Category::logits);
  b_.op("loss.logits.fp32", Phase::forward).read(logits).write(s_.end.upcast_logits);
  s_.end.log_probabilities = parallel_log_softmax(s_.end.upcast_logits);
  parallel_nll(s_.end.log_probabilities);
}

// Of the logits in fp32: minus one, or 0, in zeros; with the exponentials added; times each token's
// share of the loss's gradient.
TensorId HeadWriter::parallel_loss_backward() {
  const SymInt rows = tokens_.total(), all = checked_multiply(rows, d_.vocab);
  Ops ops(b_, Phase::backward);
  // Of the mean; of a sum that is divided, that division's own.
  const TensorId scaled =
      ops.make("loss.grad.scaled", 1, DType::fp32, {s_.end.seed, s_.end.counted});
  const TensorId safe = ops.where("loss.safe", rows, DType::int64, {});
  const TensorId ones = ops.make("loss.grad.ones", all, DType::fp32, {}, {}, Category::logits);
  const Ops::Own own = ops.own(rows, safe);
  const TensorId counts = ops.make("loss.own.counts", rows, DType::fp32, {own.others});
  const TensorId update = ops.make("loss.update", rows, DType::fp32, {counts});
  const TensorId places = ops.make("loss.places", rows, DType::int64, {});
  b_.op("loss.grad.ones", Phase::backward).update(ones).read(own.ids).read(update).read(places);
  const double tokens = rows.real();
  b_.work().moves((8 + 4 + 8 + 4) * tokens);  // one value of each row is written
  const TensorId shares = ops.where("loss.grad.shares", rows, DType::fp32, {scaled});
  const TensorId exponentials =
      ops.make("loss.exp", all, DType::fp32, {s_.end.log_probabilities}, {}, Category::logits);
  const TensorId sum =
      ops.make("loss.grad.sum", all, DType::fp32, {exponentials, ones}, {}, Category::logits);
  const TensorId wide =
      ops.make("loss.logits.fp32.grad", all, DType::fp32, {sum, shares}, {}, Category::logits);
  auto done = b_.op("loss", Phase::backward);
  for (const TensorId t : {s_.end.counted, safe, ones, own.others, own.ids, update, places, shares,
                           sum, s_.end.log_probabilities})
    done.release(t);
  b_.work().moves(0, 0);
  const TensorId d =
      ops.make("lm_head.out.grad", all, regime_.compute, {wide}, {}, Category::logits);
  return d;
}

TensorId HeadWriter::parallel_backward() {
  const TensorId d_logits = parallel_loss_backward();
  if (!s_.loss_prefetches) wrapper_.before_head_backward();
  s_.unit = s_.head_unit;
  const TensorId d = layer_
                         .linear_backward(kHead, parts_.head, head_input(), true, s_.head, d_logits,
                                          {}, {{s_.end.gathered}, {}, {}})
                         .tensor;
  return SequenceWriter(layer_).scatter(kGathered.grad_by_rank, kGathered.grad, d,
                                        checked_multiply(tokens_.total(), d_.hidden), head_input(),
                                        Category::temporaries);
}

}  // namespace plimsoll::planner::pytorch
