// Ops of a step's program from a script: runs of kernels become one op with scratch.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "planner/stacks/pytorch/tape/script.h"

namespace plimsoll::planner::tape {

// A tensor of the program that the ops touch.
struct Slot {
  Role role = Role::given;
  ValueId value = kNone;
  Size size;
  // Its places among Rule::kept and Function::also_results; -1: it is not there.
  std::int8_t kept = -1, also = -1;
};

// How often each of `Lowered::sizes` is there at one moment beyond the op's operands.
using Moment = std::vector<std::int8_t>;

struct Event {
  enum class What : std::uint8_t { take, drop, birth, death, adopt };
  What what = What::take;
  std::uint8_t at = 0;  // taken: a size; dropped: a number of taking; else a slot
  std::uint8_t from = 0;  // adopted: a slot
};

struct OpOf {
  bool unpacks = false;  // it is the first that reads what autograd kept
  std::vector<std::uint8_t> reads, writes;  // slots
  std::size_t slots_end = 0;  // those in front have been touched by now, each in its turn
  std::vector<Moment> highest;  // the op's scratch is the highest of them, or nothing
  std::vector<Event> events;  // the same, block by block
  std::vector<std::int8_t> moved;  // how often each size is read or written
  int kernels = 0;
  std::vector<Multiplied> multiplied;
  Part part;  // what it makes or undoes, where each operation is an op
};

struct Lowered {
  std::vector<Size> sizes;
  std::vector<Slot> slots;
  std::vector<OpOf> ops;
  // Of a backward: the last op that reads what the forward left, or else the last.
  std::size_t oldest = 0;
};

// Cut where what autograd kept is first read, since a checkpoint makes it again there, and where a
// value of the caller's is let go.
Lowered lower(const Script& script);

}  // namespace plimsoll::planner::tape
