#include "planner/search/cached_programs.h"

#include <utility>

namespace plimsoll::planner::search {

std::unique_ptr<CachedProgram> CachedPrograms::take(std::uint32_t strategy) {
  const auto place = places_.find(strategy);
  if (place == places_.end()) return nullptr;
  std::unique_ptr<CachedProgram> cached = std::move(*place->second);
  all_.erase(place->second);
  places_.erase(place);
  return cached;
}

std::unique_ptr<CachedProgram> CachedPrograms::take(const SectionCache::Ids& ids,
                                                    SectionCache::Missing missing) {
  const std::lock_guard lock(mutex_);
  if (auto own = take(ids.strategy)) return own;
  const auto of = [&](const std::unordered_map<std::uint32_t, std::uint32_t>& strategies,
                      std::uint32_t section) -> std::unique_ptr<CachedProgram> {
    const auto known = strategies.find(section);
    return known == strategies.end() ? nullptr : take(known->second);
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
  if (places_.contains(ids.strategy)) return;  // another thread wrote it too
  layers_[ids.layers] = losses_[ids.loss] = optimizers_[ids.optimizer] = ids.strategy;
  places_[ids.strategy] = all_.insert(all_.end(), std::move(cached));
  if (all_.size() <= kMost) return;
  places_.erase(all_.front()->ids.strategy);
  all_.pop_front();
}

}  // namespace plimsoll::planner::search
