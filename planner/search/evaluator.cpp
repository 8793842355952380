#include "planner/search/evaluator.h"

#include <cmath>
#include <limits>

#include "planner/flops.h"
#include "planner/search/axes.h"

namespace plimsoll::planner::search {

Space::Space(const Scope& scope) : scope_(scope) {
  for (const Setting& setting : adapter_choices(scope)) {
    ModelParts parts = model_parts(*scope.base.model, setting.strategy);
    std::int64_t kept = 0;
    for (const LayerRun& run : parts.runs) kept += run.input_grad ? run.count : 0;
    kept_layers_.push_back(kept);
    parts_.emplace_back(std::move(parts));
    times_.emplace_back(std::in_place, *parts_.back(), scope.base.cluster);
  }
  usable_ = capacity_of(scope.base).usable;
}

Pace Space::pace(const Setting& family, const models::Batch& batch) const {
  return paces(family, {&batch, 1}).front();
}

std::span<const models::Batch> Space::batches(const Setting& family) const {
  const models::Batch& b = family.batch;
  const std::lock_guard lock(mutex_);
  const auto [entry, is_new] =
      batches_.try_emplace({b.micro_batch, b.seq_len, b.grad_accum, family.strategy.gpus});
  if (is_new) entry->second = search::batches(scope_, family);
  return entry->second;
}

// Where the card's rates are not known: its arithmetic alone.
std::vector<Pace> Space::paces(const Setting& family,
                               std::span<const models::Batch> batches) const {
  const models::Strategy& s = family.strategy;
  const TimeModel& model = *times_[family.parts];
  std::vector<Pace> out;
  out.reserve(batches.size());
  const auto tokens = [&](const models::Batch& batch) {
    return static_cast<double>(batch.tokens()) * static_cast<double>(batch.grad_accum) *
           static_cast<double>(s.gpus);
  };
  if (model.knows(s.precision)) {
    const StrategyTime time(model, s);
    for (const models::Batch& batch : batches)
      out.push_back({tokens(batch) / time(batch).step, true});
    return out;
  }
  for (const models::Batch& batch : batches) {
    const models::StepFlops flops = step_flops(parts(family), s, batch);
    out.push_back({tokens(batch) * static_cast<double>(s.gpus) / flops.hardware, false});
  }
  return out;
}

std::optional<StepTime> Space::time(const Setting& setting) const {
  const TimeModel& time = *times_[setting.parts];
  if (!time.knows(setting.strategy.precision)) return std::nullopt;
  return time(setting.strategy, setting.batch);
}

// At the end of forward every checkpoint holds its input: hidden values of 16 bits at least for
// each token, one for each `stride` layers (the last of them may share its place).
std::int64_t Space::most_tokens(const Setting& family) const {
  if (!usable_) return std::numeric_limits<std::int64_t>::max();
  const models::Recompute& r = family.strategy.recompute;
  const std::int64_t layers = kept_layers_[family.parts];
  std::int64_t stride = 1;
  if (r.kind == models::RecomputeKind::every) stride = std::max<std::int64_t>(1, r.every);
  if (r.kind == models::RecomputeKind::sqrt)
    stride = static_cast<std::int64_t>(std::ceil(std::sqrt(static_cast<double>(layers)))) + 1;
  const std::int64_t inputs = std::max<std::int64_t>(1, layers / stride - 1);
  return usable_->value() / (2 * parts(family).decoder.hidden * inputs);
}

Evaluator::Evaluator(const Scope& scope, const Space& space, Chapters* chapters)
    : space_(space), chapters_(chapters), question_(scope.base), overheads_(scope.overheads) {
  question_.detail = Detail::none;
  step_.program_only = true;
}

// The same for all settings with the same communicators.
const Outside& Evaluator::outside(const models::Strategy& s) {
  const bool hybrid = s.data.shard_group > 0 && s.data.shard_group < s.gpus && s.data.zero >= 2;
  const auto [entry, is_new] = outside_.try_emplace({s.stack, s.gpus, hybrid});
  if (is_new) {
    Question question = question_;
    question.strategy = s;
    entry->second = outside_of(question);
  }
  return entry->second;
}

namespace {
// What decides the structure of the program, roughly.
std::size_t likeness(const Setting& x, const models::Batch& batch) {
  const models::Strategy& s = x.strategy;
  std::size_t h = static_cast<std::size_t>(std::min<std::int64_t>(batch.grad_accum, 3));
  const auto mix = [&](auto value) {
    h = (h ^ static_cast<std::size_t>(value)) * 0x9E3779B97F4A7C15;
  };
  mix(s.stack);
  mix(s.data.zero);
  mix(s.recompute.kind);
  mix(s.recompute.every);
  mix(s.loss);
  mix(s.attention);
  mix(s.optimizer_impl.has_value());
  mix(s.gpus > 1);
  mix(x.parts);
  mix(s.data.shard_group > 0);
  mix(s.precision);
  return h >> 40;
}
}  // namespace

// Batches of one family differ in sizes: the program stands, and so do its lifetimes.
bool Evaluator::resize(const Setting& setting, const models::Batch& batch) {
  return step_.sizer && written_parts_ == setting.parts && question_.strategy == setting.strategy &&
         step_.sizer->resize(batch);
}

// The peak of the program.
Peak Evaluator::find(const Setting& setting, const models::Batch& batch) {
  if (resize(setting, batch)) return finder_.find_resized(step_.program, step_.sizer->alike());
  step_.sizer.reset();
  question_.strategy = setting.strategy;
  question_.batch = batch;
  written_parts_ = setting.parts;
  write_step(question_, space_.parts(setting), step_);
  return finder_.find(step_.program, likeness(setting, batch));
}

std::optional<Need> Evaluator::need(const Setting& setting, const models::Batch& batch) {
  if (chapters_ != nullptr && !(knows_ids_ && strategy_ == setting.strategy)) {
    strategy_ = setting.strategy;
    ids_ = chapters_->ids_of(strategy_);
    knows_ids_ = true;
  }
  std::optional<Peak> known;
  if (chapters_ != nullptr) known = chapters_->find(ids_, batch);
  Peak peak;
  try {
    peak = known ? *known : find(setting, batch);
  } catch (const Error& error) {
    step_.sizer.reset();
    if (error.kind() != ErrorKind::unsupported && error.kind() != ErrorKind::bad_input) throw;
    refusal_ = error.message();
    return std::nullopt;
  }
  if (chapters_ != nullptr && !known) chapters_->add(ids_, batch, peak, finder_.stretches());
  const Outside& more = outside(setting.strategy);
  Need need{peak.bytes, more.most(), peak.scratch, peak.states, more.most(), 0};
  if (overheads_ == Overheads::high_end && !more.range) {
    need.outside_counted = more.high.total();
    need.reserved_more = more.reserved_more;
  }
  return need;
}

}  // namespace plimsoll::planner::search
