#include "planner/fitting.h"

#include <algorithm>

#include "planner/arena_replay.h"

namespace plimsoll::planner {

namespace {
constexpr Bytes kSegment = 2_MiB;  // torch reserves multiples of it
}

std::optional<Bytes> Fitting::limit_beside(Bytes bytes) const {
  if (!capacity.usable) return std::nullopt;
  return std::max(Bytes(0), *capacity.usable - bytes);
}

Reserved Fitting::within(std::optional<Bytes> limit) const {
  if (const Reserved* made = replays.find(limit)) return *made;
  const Reserved reserved = replay(step.program, timeline, limit, step.start);
  replays.add(limit, reserved);
  return reserved;
}

Reserved Fitting::reserved() const {
  if (!step.caching_allocator)
    return {.reserved = arena_reserved(step.program, timeline),
            .allocated = peak.bytes,
            .resident = peak.resident};
  const std::optional<Bytes> limit = limit_beside(outside.typical.total());
  if (!limit) return within(std::nullopt);
  if (*limit >= peak.bytes) {
    const Reserved reserved = within(limit);
    if (reserved.fits) return reserved;
  }
  for (const std::int64_t percent : {102, 105, 110, 120}) {
    const Bytes room(checked_multiply(peak.bytes.value() / 100, percent));
    if (room <= *limit) continue;
    const Reserved reserved = within(room);
    if (reserved.fits) return reserved;
  }
  return within(std::nullopt);
}

Bytes Fitting::with_more(Bytes reserved) const {
  return reserved + Bytes(checked_multiply(reserved.value() / 1000, outside.reserved_more));
}

// What may be reserved so that the part by which that may be too little fits as well.
std::optional<Bytes> Fitting::high_limit() const {
  const std::optional<Bytes> room = limit_beside(outside.high.total());
  if (!room) return std::nullopt;
  return Bytes(room->value() / (1000 + outside.reserved_more) * 1000);
}

bool Fitting::fits_high(Bytes reserved) const {
  return with_more(reserved) + outside.high.total() <= *capacity.usable;
}

// An allocator that has less room gives cached segments back earlier, so it is replayed again
// within that room.
reports::HighEnd Fitting::at_high_end(const Reserved& typical) const {
  reports::HighEnd high{with_more(typical.reserved), outside.high.total(), outside.reserved_more};
  if (!capacity.usable) return high;
  high.fits = high.device() <= *capacity.usable;
  const Bytes limit = *high_limit();
  if (high.fits || !step.caching_allocator || limit < peak.bytes) return high;
  const Reserved again = within(limit);
  if (!again.fits) return high;
  high.reserved = with_more(again.reserved);
  high.fits = high.device() <= *capacity.usable;
  return high;
}

bool Fitting::fits_typically() const {
  const Bytes limit = *limit_beside(outside.typical.total());
  if (limit < peak.bytes) return false;
  const Reserved reserved = within(limit);
  return reserved.fits && outside.most() + reserved.reserved <= *capacity.usable;
}

// A replay that never gives segments back within a limit is the one with any higher limit, and one
// that does not fit reserves more than the limit with any higher one.
bool Fitting::fits(Overheads overheads) const {
  if (!capacity.usable) return true;
  if (peak.bytes + outside.most() > *capacity.usable) return false;
  const bool high = overheads == Overheads::high_end && !outside.range;
  const Bytes limit = *high_limit();
  // Whatever is reserved beyond the limit is at least the next segment.
  const Bytes next(checked_multiply(limit.value() / kSegment.value() + 1, kSegment.value()));
  if (!step.caching_allocator || (high && fits_high(next))) {
    const Reserved typical = reserved();
    return outside.most() + typical.reserved <= *capacity.usable &&
           (!high || at_high_end(typical).fits);
  }
  if (!high) return fits_typically();
  if (limit < peak.bytes) return false;
  const Reserved reserved = within(limit);
  if (!reserved.fits || !fits_high(reserved.reserved)) return false;
  if (!reserved.gave_back) return outside.most() + reserved.reserved <= *capacity.usable;
  return fits_typically();
}

}  // namespace plimsoll::planner
