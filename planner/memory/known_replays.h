// What replays came to, by what was asked of the allocator: the same step on another card, at
// another price or on more DDP ranks asks the same, request by request, and need not be replayed
// again.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>

#include "planner/memory/reserved.h"

namespace plimsoll::planner {

// A hash of 128 bits over words, in their order: of questions that differ, one pair in 2^64 or
// fewer has the same.
class RequestHash {
 public:
  using Value = std::array<std::uint64_t, 2>;

  // Three words at a time are multiplied side by side, then taken in: one after another would wait.
  void add(std::uint64_t a, std::uint64_t b, std::uint64_t c) {
    mix(value_[0], a * 0x9e3779b97f4a7c15 ^ b * 0xc2b2ae3d27d4eb4f ^ c * 0x165667b19e3779f9);
    mix(value_[1], a * 0xd6e8feb86659fd93 + b * 0xa0761d6478bd642f + c * 0xe7037ed1a0b428db);
  }
  void add(std::int64_t word) { add(static_cast<std::uint64_t>(word), 0, 0); }
  const Value& value() const { return value_; }

 private:
  static void mix(std::uint64_t& state, std::uint64_t word) {
    state = (state ^ word) * 0xff51afd7ed558ccd;
    state ^= state >> 32;
  }

  Value value_{0x243f6a8885a308d3, 0x13198a2e03707344};
};

// Without a limit of the driver's: what the steps of a run reserve, and what unlucky ones come to.
struct KnownReplay {
  Reserved needed;
  std::optional<Bytes> unlucky;
};

// Safe to use from several threads. At most 65,536 are remembered (10 MB): the oldest half goes.
std::optional<KnownReplay> find_replay(const RequestHash::Value& requests);
void remember_replay(const RequestHash::Value& requests, const KnownReplay& replay);

}  // namespace plimsoll::planner
