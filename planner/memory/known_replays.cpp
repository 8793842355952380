#include "planner/memory/known_replays.h"

#include <mutex>

#include "models/base/remembered.h"

namespace plimsoll::planner {

namespace {

struct HashOf {
  std::size_t operator()(const RequestHash::Value& value) const {
    return static_cast<std::size_t>(value[0]);
  }
};

struct Known {
  std::mutex mutex;
  Remembered<RequestHash::Value, KnownReplay, HashOf> replays{32768};
};

Known& known() {
  static Known all;
  return all;
}

}  // namespace

std::optional<KnownReplay> find_replay(const RequestHash::Value& requests) {
  const std::scoped_lock lock(known().mutex);
  const KnownReplay* found = known().replays.find(requests);
  return found != nullptr ? std::optional(*found) : std::nullopt;
}

void remember_replay(const RequestHash::Value& requests, const KnownReplay& replay) {
  const std::scoped_lock lock(known().mutex);
  known().replays.add(requests, replay);
}

}  // namespace plimsoll::planner
