// What is planned for questions drawn by number, in a few figures each: every change of a program
// shows, whatever writes it. A rebuild must leave these lines as they are; a change that is meant
// writes them anew (tests/planner/program_pins) and says why.
#pragma once

#include <cstdint>
#include <string>

namespace plimsoll::tests {

inline constexpr std::uint64_t kPinnedPrograms = 1500;

// One line, of the question with that number: its stack, then "refused", or
//   ops        hash of each op of the unrolled step in order: name, phase, high water, what stays
//   lifetimes  hash of all tensors, in any order: name, bytes, category, stream, birth, death
//   messages   hash of collectives, and bytes sent
//   peak, resident, reserved   bytes
//   seconds of a step on an H100, FLOPs
// Ids and the order of declarations are in none of them, only what follows.
std::string program_pin(std::uint64_t number);

}  // namespace plimsoll::tests
