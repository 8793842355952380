#include "planner/memory/gather_replay.h"

namespace plimsoll::planner {

std::optional<std::size_t> GatherReplay::reaching(Bytes level) const {
  if (there_ >= level) return next_;
  Bytes there = there_;
  std::vector<Bytes> taken(blocks_.size());
  for (std::size_t i = 0; i < blocks_.size(); ++i) taken[i] = blocks_[i].bytes;
  for (std::size_t i = next_; i < events().size(); ++i) {
    const GatherEvent& event = events()[i];
    const auto block = static_cast<std::size_t>(event.block);
    if (taken.size() <= block) taken.resize(block + 1);
    if (event.goes) {
      there -= taken[block];
      continue;
    }
    taken[block] = event.bytes;
    there += event.bytes;
    if (there >= level) return i + 1;
  }
  return std::nullopt;
}

bool GatherReplay::perform_until(std::size_t end, const Ask& ask) {
  for (; next_ < end; ++next_) {
    const GatherEvent& event = events()[next_];
    const auto number = static_cast<std::size_t>(event.block);
    if (blocks_.size() <= number) blocks_.resize(number + 1);
    Taken& taken = blocks_[number];
    if (event.goes) {
      allocator_.free_uncounted(taken.block);
      there_ -= taken.bytes;
      taken = {};
      continue;
    }
    const auto block = ask(event.bytes);
    if (!block) return false;
    taken = {*block, event.bytes};
    there_ += event.bytes;
  }
  return true;
}

// A micro-batch behind another one gathers the same again.
bool GatherReplay::count(Bytes bytes, const Ask& ask) {
  allocator_.count(bytes);
  counted_ += bytes;
  std::optional<std::size_t> end = reaching(counted_);
  if (!end && next_ > 0) {
    if (!finish(ask)) return false;
    end = reaching(counted_);
  }
  return !end || perform_until(*end, ask);
}

void GatherReplay::discount(Bytes bytes) {
  allocator_.discount(bytes);
  counted_ -= bytes;
}

bool GatherReplay::finish(const Ask& ask) {
  const bool done = perform_until(events().size(), ask);
  next_ = 0;
  return done;
}

}  // namespace plimsoll::planner
