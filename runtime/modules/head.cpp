#include "runtime/modules/head.h"

#include <algorithm>

#include "models/decisions/loss.h"
#include "models/decisions/unit_names.h"
#include "models/decisions/workspace.h"
#include "runtime/modules/linear.h"

namespace plimsoll::runtime {

namespace names = models::decisions;

Head::Head(Worker& worker, const ModelSettings& settings, const HeadParameters& p, bool below)
    : worker_(worker),
      settings_(settings),
      norm_(worker, names::kFinalNorm, p.norm, settings.decoder.norm, settings.norm_eps),
      head_(p.head),
      bias_(p.bias),
      below_(below),
      trains_(p.head.trains() || p.bias.trains()) {}

template <class Visit>
void Head::in_chunks(Visit visit) {
  if (full()) return visit(0, worker_.tokens());
  const std::string outside = worker_.prefix;
  const std::int64_t most =
      models::decisions::loss_chunk_rows(settings_.decoder.vocab, worker_.regime.compute);
  for (std::int64_t first = 0; first < worker_.tokens(); first += most) {
    worker_.prefix = outside + names::kLossChunks + "." + std::to_string(first / most) + ".";
    visit(first, std::min(most, worker_.tokens() - first));
  }
  worker_.prefix = outside;
}

kernels::Columns Head::logits_of(std::int64_t rows) {
  return {logits_.view().rows(0, rows), 0, settings_.decoder.vocab};
}

// Forward -----------------------------------------------------------------------------------------

void Head::forward(Tensor x, ConstTensorView targets, const LossFactors& factors,
                   TensorView loss_sum) {
  factors_ = factors;
  const bool saves = norm_wanted();
  normalized_ =
      norm_.forward(reading(x, !saves), names::kFinalNorm.out, saves ? &statistics_ : nullptr);
  x_ = std::move(x);
  const bool keeps_normalized = full() ? head_.trains() : wanted();
  in_chunks([&](std::int64_t first, std::int64_t rows) {
    const bool dies = last(first, rows) && !keeps_normalized;
    gemm({normalized_.view().rows(first, rows), dies ? &normalized_ : nullptr}, worker_.phase);
    loss(targets, first, rows);
    if (!full() && logits_ && !chunked()) backward_gemm(first, rows);
  });
  Op op(worker_, names::kLossSum);
  worker_.kernels.loss_sum(rows_.view(), factors_.loss, loss_sum);
  op.consume(std::move(rows_));
}

Tensor Head::logits(const Tensor& x) {
  Tensor normalized = norm_.forward(reading(x), names::kFinalNorm.out, nullptr);
  gemm(reading_last(normalized), worker_.phase);
  if (settings_.logits_cap > 0) worker_.kernels.soft_cap(settings_.logits_cap, logits_.view());
  return std::move(logits_);
}

void Head::gemm(Operand normalized, Phase phase) {
  Op op(worker_, names::kHead.gemm, phase);
  const std::int64_t rows = normalized.view.shape[0];
  if (!logits_)  // of the first chunk, which no other is larger than: behind no chunk's prefix
    logits_ = worker_.memory.allocate(
        names::kHead.out, Category::logits, worker_.regime.compute,
        {rows, models::decisions::logits_stride(settings_.decoder.vocab, worker_.regime.compute)});
  worker_.kernels.linear_forward(normalized.view, head_.value(), bias_.value(),
                                 {.scale = settings_.logits_scale}, logits_of(rows),
                                 gemm_panels(worker_));
  normalized.read_by(op);
}

void Head::loss(ConstTensorView targets, std::int64_t first, std::int64_t rows) {
  Op op(worker_, names::kLoss);
  // Of all chunks: behind no chunk's prefix.
  const auto all = [&](const char* name, Category category) {
    return worker_.memory.allocate(name, category, models::decisions::kStatistics,
                                   {worker_.tokens()});
  };
  if (!rows_) rows_ = all(names::kLossRows, Category::temporaries);
  if (chunked() && wanted() && !logsumexp_)
    logsumexp_ = all(names::kLossLogsumexp, Category::activations);
  const bool gradient = wanted() && !chunked();
  worker_.kernels.cross_entropy(
      targets.as({worker_.tokens()}).rows(first, rows), kernels::kIgnoreIndex, gradient,
      factors_.gradient, settings_.logits_cap, logits_of(rows), rows_.view().rows(first, rows),
      logsumexp_ ? logsumexp_.view().rows(first, rows) : TensorView{});
  if (!gradient && last(first, rows)) op.consume(std::move(logits_));
}

// Backward ----------------------------------------------------------------------------------------

Tensor Head::backward(ConstTensorView targets) {
  if (full() && logits_) backward_gemm(0, worker_.tokens());
  if (chunked() && wanted())
    in_chunks([&](std::int64_t first, std::int64_t rows) {
      gemm({normalized_.view().rows(first, rows)}, Phase::recompute);
      loss_again(targets, first, rows);
      backward_gemm(first, rows);
    });
  if (norm_wanted()) norm_.backward_in_place(reading_last(x_), std::move(statistics_), d_, below_);
  return std::move(d_);
}

void Head::loss_again(ConstTensorView targets, std::int64_t first, std::int64_t rows) {
  Op op(worker_, names::kLoss, Phase::backward);
  worker_.kernels.cross_entropy_backward(
      targets.as({worker_.tokens()}).rows(first, rows), kernels::kIgnoreIndex, factors_.gradient,
      settings_.logits_cap, logsumexp_.view().rows(first, rows), logits_of(rows));
  if (last(first, rows)) op.consume(std::move(logsumexp_));
}

void Head::backward_gemm(std::int64_t first, std::int64_t rows) {
  const bool input = norm_wanted();
  const auto logits = [&](bool last_reader) {
    return Operand{logits_.view().rows(0, rows),
                   last_reader && last(first, rows) ? &logits_ : nullptr};
  };
  if (trains_) weight_gradient(logits(!input), first);
  if (input) input_gradient(logits(true), first);
}

void Head::weight_gradient(Operand logits, std::int64_t first) {
  Op op(worker_, names::kHead.weight_grad, Phase::backward);
  const std::int64_t rows = logits.view.shape[0];
  if (head_.trains())
    worker_.kernels.linear_backward_weight(logits_of(rows), normalized_.view().rows(first, rows),
                                           {.accumulate = true, .scale = settings_.logits_scale},
                                           head_.gradient(), gemm_panels(worker_));
  if (bias_.trains())
    worker_.kernels.bias_backward(
        logits_of(rows), bias_.gradient(),
        worker_.scratch(DType::fp32, {models::decisions::kPartialRows, settings_.decoder.vocab}));
  logits.read_by(op);
  if (last(first, rows) && (full() || !norm_wanted())) op.consume(std::move(normalized_));
}

void Head::input_gradient(Operand logits, std::int64_t first) {
  Op op(worker_, names::kHead.input_grad, Phase::backward);
  const std::int64_t rows = logits.view.shape[0];
  Tensor& d = full() ? d_ : normalized_;
  if (full())
    d = op.make(names::kHead.input_grad, Category::temporaries, {rows, settings_.decoder.hidden});
  worker_.kernels.linear_backward_input(logits_of(rows), head_.value(),
                                        {.scale = settings_.logits_scale},
                                        d.view().rows(first, rows), gemm_panels(worker_));
  logits.read_by(op);
  if (!full() && last(first, rows)) d_ = std::move(normalized_);
}

Bytes Head::workspace() const {
  Bytes most = std::max(gemm_scratch(worker_), norm_.workspace());
  if (bias_.trains())
    most = std::max(
        most,
        storage(Count(checked_multiply(models::decisions::kPartialRows, settings_.decoder.vocab)),
                DType::fp32));
  return most;
}

}  // namespace plimsoll::runtime
