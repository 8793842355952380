// Embedding, final norm, head and loss.
#include "planner/stacks/plimsoll/step.h"

namespace plimsoll::planner::plimsoll_stack {

using models::kNoGroup;
using models::Loss;
namespace decisions = models::decisions;

namespace {
constexpr const decisions::LinearNames& kHead = decisions::kHead;
}  // namespace

// Embedding ---------------------------------------------------------------------------------------

// Tables are read, positions added, dropout applied in one pass.
void StepWriter::embed() {
  b_.open(kNoGroup, false, times_);
  TensorId table = kNoTensor;  // tied to the head: gathered twice
  if (gathers()) {
    if (d_.tied_head)
      table = b_.tensor(tail_.names->gathered, tail_.whole, Category::parameters,
                        models::Stream::gather);
    op(decisions::kFirstGather, Phase::forward).write(table).write(embedding_.gathered_forward);
    gather(embedding_, Phase::forward,
           runs_.empty() ? Ref{tail_.gathered_forward}
                         : Ref{runs_.front().units.front().gathered_forward, +1});
  }
  embedded_ = layer_.make(decisions::kEmbeddingOut, d_.hidden);
  op(decisions::kEmbedding, Phase::forward).write(embedded_);
  const double stream = layer_.bytes(d_.hidden, regime_.compute).real();
  b_.work().moves(2 * stream);
  if (gathers())
    op(embedding_.names->free, Phase::forward).release(embedding_.gathered_forward).release(table);
  b_.close();
}

// Masked in place where the forward dropped; rows are added in the order of the sorted ids.
void StepWriter::embedding_backward() {
  b_.open(kNoGroup, true, times_);
  if (parts_.train_embedding || parts_.train_positions_any()) {
    auto embedding = op(decisions::kEmbedding, Phase::backward);
    embedding.update(stream_grad_).update(embedding_.written);
    if (d_.tied_head && parts_.train_embedding) embedding.update(tail_.written);
    b_.work().moves(3 * layer_.bytes(d_.hidden, regime_.compute).real());
  }
  Ref held = reduced_last(exchanged()), kept = reduced_last(&Unit::kept);
  const auto next = [&](const Unit& unit) {
    if (!unit.trains()) return;
    reduce(unit, held, kept);
    held = {unit.*exchanged()};
    kept = {unit.kept};
  };
  next(embedding_);
  if (d_.tied_head) next(tail_);
  if (holds() && !strategy_.optimizer_in_backward)
    take_reduced(decisions::kLastReduced, held, kept);
  b_.close();
}

// Head and loss -----------------------------------------------------------------------------------

void StepWriter::final_norm() {
  wants_normalized_ = below_head_trains() || parts_.final_norm.trains();
  b_.open(kNoGroup, false, times_);
  const Ref in = stream_end();
  const std::int64_t columns = d_.norm == models::NormKind::layer_norm ? 2 : 1;
  statistics_ = wants_normalized_
                    ? layer_.make_statistics(decisions::kFinalNorm.statistics, columns)
                    : kNoTensor;
  normalized_ = layer_.make(decisions::kFinalNorm.out, d_.hidden);
  op(decisions::kFinalNorm.norm, Phase::forward)
      .touch(in.tensor, in.delta, in.beyond)
      .write(normalized_)
      .write(statistics_);
  b_.close();
}

// Logits of `rows` tokens.
TensorId StepWriter::logits(SymInt rows) {
  const std::int64_t stride = decisions::logits_stride(d_.vocab, regime_.compute);
  const SymBytes bytes = storage(rows * stride, regime_.compute);
  return b_.tensor_in(kNoGroup, kHead.out, b_.rounded(bytes), Category::logits);
}

TensorId StepWriter::loss_rows(const char* name, Category category) {
  return b_.tensor_in(kNoGroup, name, b_.rounded(layer_.bytes(1, decisions::kStatistics)),
                      category);
}

void StepWriter::gather_last_layer() {
  if (!runs_.empty()) gather(tail_, Phase::backward, {first_backward(runs_.size() - 1), -1});
}

void StepWriter::full_loss() {
  b_.open(kNoGroup, false, times_);
  const TensorId all = logits(tokens_.total());
  const TensorId rows = loss_rows(decisions::kLossRows, Category::temporaries);
  op(kHead.gemm, Phase::forward).read(normalized_).write(all);
  b_.work().gemm(of_head(Head::logits));
  op(decisions::kLoss, Phase::forward).update(all).write(rows);
  op(decisions::kLossSum, Phase::forward).read(rows);
  gather_last_layer();
  head_gradients(all);
  stream_grad_ = kNoTensor;
  if (wants_normalized_) {
    stream_grad_ = layer_.temporary(kHead.input_grad, d_.hidden);
    op(kHead.input_grad, Phase::backward).read(all).write(stream_grad_);
    b_.work().gemm(of_head(Head::input));
  }
  b_.close();
}

// Of the head's weight and bias. Chunks keep the normalized stream for the last of their ops.
void StepWriter::head_gradients(TensorId logits) {
  const LinearPart& head = parts_.head;
  const bool bias = head.bias && head.train_bias;
  if (!head.train_weight && !bias) return;
  auto gradients = op(kHead.weight_grad, Phase::backward);
  if (head.train_weight || strategy_.loss != Loss::full) gradients.read(normalized_);
  gradients.read(logits).update(tail_.written);
  if (head.train_weight) b_.work().gemm(of_head(Head::weight));
  if (!bias) return;
  const SymBytes all = storage(tokens_.total() * d_.vocab, regime_.compute);
  b_.work().moves(all.real() / (strategy_.loss == Loss::full ? SymInt(1) : loss_chunks()).real());
}

// The gradients of a chunk; the input's takes the input's place.
void StepWriter::chunk_gradients(TensorId chunk) {
  head_gradients(chunk);
  if (!wants_normalized_) return;
  op(kHead.input_grad, Phase::backward).read(chunk).update(normalized_);
  b_.work().gemm(of_head(Head::input));
}

// Over all tokens, in chunks where the loss has them.
Gemm StepWriter::of_head(Head which) const {
  const double t = tokens_.total().real(), v = static_cast<double>(d_.vocab),
               h = static_cast<double>(d_.hidden);
  const double rows = static_cast<double>(decisions::loss_chunk_rows(d_.vocab, regime_.compute));
  const bool cut = strategy_.loss != Loss::full;
  Gemm gemm{regime_.compute, t, v, h, 1, cut ? Gemm::Cut::rows : Gemm::Cut::none, rows};
  if (which == Head::input) std::swap(gemm.n, gemm.k);
  if (which == Head::weight) std::swap(gemm.m, gemm.k);
  gemm.tokens_summed = which == Head::weight;
  return gemm;
}

// The kernel of one chunk reads the logits and writes their gradient in place.
void StepWriter::loss_work() const {
  const SymBytes all = storage(tokens_.total() * d_.vocab, regime_.compute);
  b_.work().moves(2 * all.real() / loss_chunks().real());
}

void StepWriter::chunked_loss() {
  const SymInt rows =
      smaller(tokens_.total(), decisions::loss_chunk_rows(d_.vocab, regime_.compute));
  const bool fused = strategy_.loss == Loss::fused;
  const TensorId losses = loss_rows(decisions::kLossRows, Category::temporaries);
  const TensorId sums =
      fused ? kNoTensor : loss_rows(decisions::kLossLogsumexp, Category::activations);
  TensorId chunk = logits(rows);
  b_.open(chunks_, false, times_);
  op(kHead.gemm, Phase::forward).read(normalized_).write(chunk);
  b_.work().gemm(of_head(Head::logits));
  op(decisions::kLoss, Phase::forward).update(chunk).write(losses).write(sums);
  loss_work();
  if (fused) chunk_gradients(chunk);
  b_.close();
  b_.open(kNoGroup, false, times_);
  op(decisions::kLossSum, Phase::forward).read(losses);
  gather_last_layer();
  b_.close();
  if (!fused) {
    chunk = logits(rows);
    b_.open(chunks_, false, times_);
    op(kHead.gemm, Phase::recompute).read(normalized_).write(chunk);
    b_.work().gemm(of_head(Head::logits));
    op(decisions::kLoss, Phase::backward).update(chunk).read(sums);
    loss_work();
    chunk_gradients(chunk);
    b_.close();
  }
  stream_grad_ = wants_normalized_ ? normalized_ : kNoTensor;
}

void StepWriter::final_norm_backward() {
  b_.open(kNoGroup, false, times_);
  if (wants_normalized_) {
    const Ref in = stream_end();
    auto norm = op(decisions::kFinalNorm.norm, Phase::backward);
    norm.touch(in.tensor, in.delta, in.beyond).read(statistics_).update(stream_grad_);
    if (parts_.final_norm.trains()) norm.update(tail_.written);
    b_.work().moves((parts_.final_norm.trains() ? 5 : 3) *
                    layer_.bytes(d_.hidden, regime_.compute).real());
  }
  free_gathered(tail_, Phase::backward, tail_.gathered_forward);
  if (!d_.tied_head) reduce(tail_, {}, {});
  b_.close();
}

}  // namespace plimsoll::planner::plimsoll_stack
