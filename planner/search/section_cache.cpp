#include "planner/search/section_cache.h"

#include <algorithm>

#include "planner/search/shape.h"
#include "planner/stack_step.h"
#include "planner/stacks/stack_info.h"

namespace plimsoll::planner::search {

using models::Batch;
using models::RecomputeKind;
using models::Section;
using models::Strategy;

namespace {

class Mixer {
 public:
  template <class Value>
  Mixer& mix(Value value) {
    hash_ = (hash_ ^ static_cast<std::size_t>(value)) * 0x9E3779B97F4A7C15;
    hash_ ^= hash_ >> 32;
    return *this;
  }
  std::size_t hash() const { return hash_; }

 private:
  std::size_t hash_ = 0;
};

// Equal micro-batches are alike, however many there are.
Batch distinct(Batch batch) {
  batch.grad_accum = std::min(batch.grad_accum, kDistinctMicroBatches);
  return batch;
}

}  // namespace

std::size_t SectionCache::KeyHash::operator()(const Key& key) const {
  return Mixer()
      .mix(key.id)
      .mix(key.batch.micro_batch)
      .mix(key.batch.seq_len)
      .mix(key.batch.grad_accum)
      .hash();
}

// Of what the axes choose.
std::size_t SectionCache::StrategyHash::operator()(const Strategy& s) const {
  return Mixer()
      .mix(s.stack)
      .mix(s.gpus)
      .mix(s.data.zero)
      .mix(s.data.shard_group)
      .mix(s.recompute.kind)
      .mix(s.recompute.layers)
      .mix(s.kernels)
      .mix(s.loss)
      .mix(s.attention)
      .mix(s.precision)
      .mix(s.optimizer_impl.has_value())
      .mix(s.lora.has_value())
      .mix(s.quantize.has_value())
      .mix(s.optimizer)
      .mix(s.offload.any())
      .hash();
}

std::uint32_t SectionCache::number(Numbers& numbers, const Strategy& strategy) {
  return numbers.try_emplace(strategy, static_cast<std::uint32_t>(numbers.size())).first->second;
}

// What the loss does not depend on is set to one value. Autocast's casts of the layers' weights go
// in the middle of it where whole layers are recomputed: there alone recomputation matters, and
// where parts are frozen, since checkpoints force gradients then. With patterns of frozen parts,
// what the loss and the optimizer find may depend on anything of the layers.
Strategy SectionCache::key_of_loss(Strategy loss) {
  const RecomputeKind kind = loss.recompute.kind;
  if (!loss.optimizer_in_backward) loss.optimizer_impl.reset();
  if (!loss.freeze.empty()) return loss;
  loss.attention = models::Attention::flash;
  if (kind != RecomputeKind::none && kind != RecomputeKind::selective)
    loss.recompute = {RecomputeKind::full, 1};
  else if (!loss.lora)
    loss.recompute = {RecomputeKind::none, 1};
  return loss;
}

// A fused loss makes the head's gradient itself, and a tied table's two gradients are added in
// place then. Elsewhere that gradient is a GEMM's: a view, unless autocast's cast makes a tensor
// of it.
bool SectionCache::reaches_layers(const Strategy& s) {
  const StackInfo& stack = stack_info(s.stack);
  if (s.loss != models::Loss::fused || !stack.runs_transformers) return false;
  const bool sharded = stack.has_fsdp && s.data.zero >= 2;
  const bool casts = stack.mixed_is_autocast && is_mixed(s.precision) && !sharded &&
                     s.param_dtype.value_or(DType::fp32) == DType::fp32;
  return !casts;
}

SectionCache::Ids SectionCache::ids_of(const Strategy& strategy, bool tied_head) {
  Strategy layers = strategy;
  if (!tied_head || !reaches_layers(strategy)) layers.loss = models::Loss::full;
  if (!strategy.optimizer_in_backward) layers.optimizer_impl.reset();
  const Strategy loss = key_of_loss(strategy);
  Strategy optimizer = strategy;
  if (strategy.freeze.empty()) {
    optimizer.recompute = {RecomputeKind::none, 1};
    optimizer.attention = models::Attention::flash;
  }
  optimizer.loss = models::Loss::full;
  const Strategy shape = shape_of(strategy);
  const std::lock_guard lock(mutex_);
  return {number(strategies_, strategy), number(layers_of_, layers), number(losses_of_, loss),
          number(optimizers_of_, optimizer), number(strategies_, shape)};
}

SectionCache::Missing SectionCache::missing(const Ids& ids, const Batch& batch) const {
  const Batch alike = distinct(batch);
  const std::lock_guard lock(mutex_);
  if (!layers_.contains({ids.layers, alike})) return Missing::layers;
  if (!losses_.contains({ids.loss, alike})) return Missing::loss;
  return optimizers_.contains({ids.optimizer, alike}) ? Missing::nothing : Missing::optimizer;
}

std::optional<Peak> SectionCache::find(const Ids& ids, const Batch& batch) const {
  const Batch alike = distinct(batch);
  const std::lock_guard lock(mutex_);
  if (contradicted_) return std::nullopt;
  const auto layers = layers_.find({ids.layers, alike});
  if (layers == layers_.end()) return std::nullopt;
  const auto loss = losses_.find({ids.loss, alike});
  if (loss == losses_.end()) return std::nullopt;
  const auto optimizer = optimizers_.find({ids.optimizer, alike});
  if (optimizer == optimizers_.end()) return std::nullopt;
  const Layers& x = layers->second;
  const Optimizer& end = optimizer->second;
  Bytes high = std::max(x.high, x.optimizer_begins + end.rise);
  for (std::size_t i = 0; i < loss->second.count; ++i)
    high = std::max(high, x.loss_begins[i] + loss->second.rises[i]);
  Peak peak;
  peak.resident = x.resident + end.states;
  peak.bytes = peak.resident + high;
  peak.scratch = std::max({x.scratch, loss->second.scratch, end.scratch});
  peak.states = end.states;
  return peak;
}

template <class Figures>
void SectionCache::note(Known<Figures>& known, const Key& key, const Figures& figures) {
  const auto [entry, is_new] = known.try_emplace(key, figures);
  if (!is_new && entry->second != figures) contradicted_ = true;
}

void SectionCache::add(const Ids& ids, const Batch& batch, const Peak& peak,
                       std::span<const SectionPeak> section_peaks) {
  Layers layers;
  layers.resident = peak.resident - peak.states;  // workspaces that stay, among others
  Loss loss;
  Optimizer optimizer{.rise = Bytes(0), .scratch = Bytes(0), .states = peak.states};
  std::size_t optimizers = 0;
  for (const SectionPeak& one : section_peaks) {
    switch (one.section) {
      case Section::layers:
        layers.high = std::max(layers.high, one.entry + one.rise);
        layers.scratch = std::max(layers.scratch, one.scratch);
        break;
      case Section::loss:
        if (loss.count == kMost) return;
        layers.loss_begins[loss.count] = one.entry;
        loss.rises[loss.count++] = one.rise;
        loss.scratch = std::max(loss.scratch, one.scratch);
        break;
      case Section::optimizer:
        if (++optimizers > 1) return;
        layers.optimizer_begins = one.entry;
        optimizer.rise = one.rise;
        optimizer.scratch = one.scratch;
        break;
    }
  }
  const Batch alike = distinct(batch);
  const std::lock_guard lock(mutex_);
  note(layers_, {ids.layers, alike}, layers);
  note(losses_, {ids.loss, alike}, loss);
  note(optimizers_, {ids.optimizer, alike}, optimizer);
}

}  // namespace plimsoll::planner::search
