// Questions over everything that can be asked: each family, each kind of job, each option of a
// step, so that every rule of the planner has a part in some answer.
#pragma once

#include <cstdint>
#include <string>

#include "tests/tools/drawn_question.h"

namespace plimsoll::tests {

struct WideQuestion {
  std::string model;
  Given given;
};

// The same on every machine. Some are refused: options do not know of each other here.
WideQuestion wide_question(std::uint64_t number);
// The same of `recommend`: what is given, and what is looked for.
WideQuestion wide_search(std::uint64_t number);

}  // namespace plimsoll::tests
