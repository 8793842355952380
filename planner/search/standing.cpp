#include "planner/search/standing.h"

#include <utility>

namespace plimsoll::planner::search {

std::unique_ptr<Standing> StandingPrograms::take(std::uint32_t strategy) {
  const auto place = places_.find(strategy);
  if (place == places_.end()) return nullptr;
  std::unique_ptr<Standing> standing = std::move(*place->second);
  all_.erase(place->second);
  places_.erase(place);
  return standing;
}

std::unique_ptr<Standing> StandingPrograms::take(const Chapters::Ids& ids,
                                                 Chapters::Missing missing) {
  const std::lock_guard lock(mutex_);
  if (auto own = take(ids.strategy)) return own;
  const auto of = [&](const std::unordered_map<std::uint32_t, std::uint32_t>& strategies,
                      std::uint32_t chapter) -> std::unique_ptr<Standing> {
    const auto known = strategies.find(chapter);
    return known == strategies.end() ? nullptr : take(known->second);
  };
  switch (missing) {
    case Chapters::Missing::layers:
      return of(layers_, ids.layers);
    case Chapters::Missing::loss:
      return of(losses_, ids.loss);
    case Chapters::Missing::optimizer:
      return of(optimizers_, ids.optimizer);
    case Chapters::Missing::nothing:
      break;
  }
  return nullptr;
}

void StandingPrograms::put(std::unique_ptr<Standing> standing) {
  const std::lock_guard lock(mutex_);
  const Chapters::Ids ids = standing->ids;
  if (places_.contains(ids.strategy)) return;  // another thread wrote it too
  layers_[ids.layers] = losses_[ids.loss] = optimizers_[ids.optimizer] = ids.strategy;
  places_[ids.strategy] = all_.insert(all_.end(), std::move(standing));
  if (all_.size() <= kMost) return;
  places_.erase(all_.front()->ids.strategy);
  all_.pop_front();
}

}  // namespace plimsoll::planner::search
