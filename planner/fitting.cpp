#include "planner/fitting.h"

#include <algorithm>

#include "planner/arena_replay.h"

namespace plimsoll::planner {

Reserved Fitting::needed() const {
  if (replays.needed) return *replays.needed;
  replays.needed = step.caching_allocator
                       ? replay(step.program, timeline, {}, step.start, step.allocator)
                       : Reserved{.reserved = arena_reserved(step.program, timeline),
                                  .allocated = peak.bytes,
                                  .resident = peak.resident};
  return *replays.needed;
}

// Whether a step runs within a limit is not monotone in it: with more room the allocator gives
// other segments back, at other moments. So the rooms that are tried lie between the step's peak
// and what it needs, whatever the card, and the least of them that will do decides.
// Many: of a step that needs 110 GB a 32nd of that range is 0.9 GB, and one that ran in the last
// 0.15 GB of its card was called too large (fms-liger-037 of tests/golden/published_memory.json).
std::optional<Reserved> Fitting::flushing() const {
  constexpr std::int64_t kRooms = 128;
  if (!step.caching_allocator || !capacity.usable) return std::nullopt;
  const Bytes room = *capacity.usable - outside.typical.total();
  const Bytes most = needed().reserved;
  if (room >= most) return std::nullopt;
  const Bytes part((most - peak.bytes).value() / kRooms);
  std::optional<Reserved> found;
  for (std::int64_t i = 0; i < kRooms && !found; ++i) {
    const Bytes tried = peak.bytes + part * i;
    if (tried > room) return std::nullopt;
    const Reserved made =
        replay(step.program, timeline, {.limit = tried}, step.start, step.allocator);
    if (made.fits) found = made;
  }
  if (!found) return std::nullopt;
  // As it would be on this card, where the allocator gets through with what that has.
  const Reserved here = replay(step.program, timeline, {.limit = room}, step.start, step.allocator);
  return here.fits ? here : found;
}

Bytes Fitting::with_more(Bytes reserved) const {
  return reserved + Bytes(checked_multiply(reserved.value() / 1000, outside.reserved_more));
}

reports::HighEnd Fitting::at_high_end(Bytes needed) const {
  reports::HighEnd high{with_more(needed), outside.high.total(), outside.reserved_more};
  high.fits = capacity.usable && high.device() <= *capacity.usable;
  return high;
}

bool Fitting::fits(Bytes reserved, bool high) const {
  return outside.most() + reserved <= *capacity.usable &&
         (!high || with_more(reserved) + outside.high.total() <= *capacity.usable);
}

bool Fitting::fits(Overheads overheads) const {
  if (!capacity.usable) return true;
  const bool high = overheads == Overheads::high_end && !outside.range;
  if (!fits(peak.bytes, high)) return false;
  if (step.caching_allocator && !replays.needed) {
    // The most that may be reserved; what is needed beyond it is refused.
    Bytes limit = *capacity.usable - outside.most();
    if (high) {
      const Bytes room = *capacity.usable - outside.high.total();
      // with_more() counts whole thousands.
      limit = std::min(limit, Bytes((room.value() / (1000 + outside.reserved_more) + 2) * 1000));
    }
    const Reserved made = replay(step.program, timeline, {.limit = limit, .may_flush = false},
                                 step.start, step.allocator);
    if (!made.fits) return false;
    replays.needed = made;
  }
  return fits(needed().reserved, high);
}

}  // namespace plimsoll::planner
