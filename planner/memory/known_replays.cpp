#include "planner/memory/known_replays.h"

#include <mutex>
#include <unordered_map>
#include <utility>

namespace plimsoll::planner {

namespace {

struct HashOf {
  std::size_t operator()(const RequestHash::Value& value) const {
    return static_cast<std::size_t>(value[0]);
  }
};

// Of two generations the older is forgotten when the younger is full.
class Known {
 public:
  std::optional<KnownReplay> find(const RequestHash::Value& requests) {
    const std::scoped_lock lock(mutex_);
    if (const auto at = young_.find(requests); at != young_.end()) return at->second;
    const auto at = old_.find(requests);
    if (at == old_.end()) return std::nullopt;
    const KnownReplay found = at->second;
    add(requests, found);
    return found;
  }

  void remember(const RequestHash::Value& requests, const KnownReplay& replay) {
    const std::scoped_lock lock(mutex_);
    add(requests, replay);
  }

 private:
  void add(const RequestHash::Value& requests, const KnownReplay& replay) {
    constexpr std::size_t kMost = 32768;
    if (young_.size() >= kMost) {
      old_ = std::move(young_);
      young_.clear();
    }
    young_[requests] = replay;
  }

  std::mutex mutex_;
  std::unordered_map<RequestHash::Value, KnownReplay, HashOf> young_, old_;
};

Known& known() {
  static Known replays;
  return replays;
}

}  // namespace

std::optional<KnownReplay> find_replay(const RequestHash::Value& requests) {
  return known().find(requests);
}

void remember_replay(const RequestHash::Value& requests, const KnownReplay& replay) {
  known().remember(requests, replay);
}

}  // namespace plimsoll::planner
