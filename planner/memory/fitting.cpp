#include "planner/memory/fitting.h"

#include <algorithm>

#include "planner/memory/arena_replay.h"

namespace plimsoll::planner {

Reserved Fitting::needed() const {
  if (replays.needed) return *replays.needed;
  if (step.caching_allocator) {
    replays.needed =
        replay_on(step.program, timeline, {}, step.start, step.allocator, replays.unlucky);
  } else {
    replays.needed = Reserved{.reserved = arena_reserved(step.program, timeline),
                              .allocated = peak.bytes,
                              .resident = peak.resident};
    replays.unlucky = replays.needed->reserved;
  }
  return *replays.needed;
}

Bytes Fitting::unlucky() const {
  if (!replays.unlucky) replays.needed.reset();
  needed();
  return *replays.unlucky;
}

// Whether a step runs within a limit is mostly, but not always, monotone in it: with more room the
// allocator gives other segments back, at other moments. So the rooms that are tried lie between
// the step's peak and what it needs, whatever the card, and a step that runs in one of them runs in
// all that are larger. Halving finds one soon, where there is one; else all up to the card's are
// tried: with 128 of them one that ran in the last 0.15 GB of its card was called too large
// (fms-liger-037 of tests/golden/published_memory.json; its step needs 110 GB). A step that is
// refused in a room is refused in the same place in every larger one where the driver says the
// same: of those only the next where it does not is tried.
std::optional<Reserved> Fitting::flushing() const {
  if (!step.caching_allocator || !capacity.usable) return std::nullopt;
  const Bytes room = *capacity.usable - overhead.typical.total();
  if (room >= needed().reserved || room < peak.bytes) return std::nullopt;
  constexpr std::int64_t kRooms = 256;
  const std::int64_t part =
      std::max<std::int64_t>(1, (needed().reserved - peak.bytes).value() / kRooms);
  const auto limited = [&](Bytes limit) {
    return replay(step.program, timeline, {.limit = limit}, step.start, step.allocator);
  };
  const std::int64_t last = (room - peak.bytes).value() / part;
  std::optional<Reserved> found;
  // Where the next room lies, in which the driver says something else.
  const auto refused_until = [&](std::int64_t i) {
    const Reserved made = limited(peak.bytes + Bytes(part * i));
    if (made.fits && i <= last) found = made;
    if (made.fits) return i;
    return made.next_limit ? ceil_divide((*made.next_limit - peak.bytes).value(), part) : last + 1;
  };
  for (std::int64_t refused = -1, large = kRooms;
       !found && large - refused > 1 && refused < last;) {
    const std::int64_t middle = refused + (large - refused) / 2;
    (refused_until(middle) == middle ? large : refused) = middle;
  }
  for (std::int64_t i = 0; i <= last && !found;) i = refused_until(i);
  if (!found) return std::nullopt;
  // As it would be on this card, where the allocator gets through with what that has.
  const Reserved here = limited(room);
  return here.fits ? here : found;
}

Bytes Fitting::with_more(Bytes reserved) const {
  return reserved + Bytes(checked_multiply(reserved.value() / 1000, overhead.reserved_more));
}

Bytes Fitting::most_at_high_end() const {
  const Bytes room = *capacity.usable - overhead.high.total();
  // with_more() counts whole thousands.
  return Bytes((room.value() / (1000 + overhead.reserved_more) + 2) * 1000);
}

reports::HighEnd Fitting::at_high_end() const {
  reports::HighEnd high{with_more(unlucky()), overhead.high.total(), overhead.reserved_more};
  high.fits = capacity.usable && high.device() <= *capacity.usable;
  return high;
}

bool Fitting::fits(Bytes reserved, bool high) const {
  return overhead.most() + reserved <= *capacity.usable &&
         (!high || with_more(reserved) + overhead.high.total() <= *capacity.usable);
}

// No longer than until it does not.
bool Fitting::replay_within(Bytes limit, bool unluckily) const {
  const Room room{.limit = limit, .may_flush = false};
  std::optional<Bytes> unlucky;
  const Reserved made =
      unluckily ? replay_on(step.program, timeline, room, step.start, step.allocator, unlucky)
                : replay(step.program, timeline, room, step.start, step.allocator);
  if (!made.fits || (unluckily && !unlucky)) return false;
  replays.needed = made;
  replays.unlucky = unlucky;
  return true;
}

bool Fitting::fits(Overheads overheads) const {
  if (!capacity.usable) return true;
  const bool high = overheads == Overheads::high_end && !overhead.range;
  if (!fits(peak.bytes, high)) return false;
  if (step.caching_allocator &&
      !(high ? replays.unlucky.has_value() : replays.needed.has_value())) {
    Bytes limit = *capacity.usable - overhead.most();
    if (high) limit = std::min(limit, most_at_high_end());
    if (!replay_within(limit, high)) return false;
  }
  return fits(high ? unlucky() : needed().reserved, high);
}

}  // namespace plimsoll::planner
