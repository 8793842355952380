#include "planner/search/cached_programs.h"

#include <algorithm>
#include <utility>

#include "planner/stack_step.h"

namespace plimsoll::planner::search {

BatchClass class_of(const models::Batch& batch) {
  return {batch.seq_len, std::min(batch.grad_accum, kDistinctMicroBatches), batch.micro_batch > 1};
}

std::size_t CachedPrograms::KeyHash::operator()(const Key& key) const {
  const auto structure = static_cast<std::uint64_t>(key.of.length) << 3 |
                         static_cast<std::uint64_t>(key.of.micro_batches) << 1 |
                         (key.of.several ? 1 : 0);
  return (structure * 0x9E3779B97F4A7C15 ^ key.id) * 0xD6E8FEB86659FD93;
}

std::unique_ptr<CachedProgram> CachedPrograms::take(const Key& key) {
  const auto place = places_.find(key);
  if (place == places_.end()) return nullptr;
  std::unique_ptr<CachedProgram> cached = std::move(*place->second);
  all_.erase(place->second);
  places_.erase(place);
  return cached;
}

std::unique_ptr<CachedProgram> CachedPrograms::take(const SectionCache::Ids& ids,
                                                    std::int64_t shards,
                                                    SectionCache::Missing missing,
                                                    const BatchClass& batch) {
  const std::lock_guard lock(mutex_);
  const auto as = [&](const Had& had) {
    std::unique_ptr<CachedProgram> cached = take({had.ids.shape, batch});
    if (cached) {
      cached->ids = had.ids;
      cached->shards = had.shards;
    }
    return cached;
  };
  if (auto own = as({ids, shards})) return own;
  const auto of = [&](const auto& strategies,
                      std::uint32_t section) -> std::unique_ptr<CachedProgram> {
    const auto known = strategies.find({section, batch});
    return known == strategies.end() ? nullptr : as(known->second);
  };
  switch (missing) {
    case SectionCache::Missing::layers:
      return of(layers_, ids.layers);
    case SectionCache::Missing::loss:
      return of(losses_, ids.loss);
    case SectionCache::Missing::optimizer:
      return of(optimizers_, ids.optimizer);
    case SectionCache::Missing::nothing:
      break;
  }
  return nullptr;
}

void CachedPrograms::put(std::unique_ptr<CachedProgram> cached) {
  const std::lock_guard lock(mutex_);
  const SectionCache::Ids ids = cached->ids;
  const BatchClass of = cached->of;
  if (places_.contains({ids.shape, of})) return;  // another thread wrote it too
  layers_[{ids.layers, of}] = losses_[{ids.loss, of}] =
      optimizers_[{ids.optimizer, of}] = {ids, cached->shards};
  places_[{ids.shape, of}] = all_.insert(all_.end(), std::move(cached));
  if (all_.size() <= kMost) return;
  places_.erase({all_.front()->ids.shape, all_.front()->of});
  all_.pop_front();
}

}  // namespace plimsoll::planner::search
