// What could be changed about a question so that it needs less memory, each change as the options
// that ask for it.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "planner/plan.h"

namespace plimsoll::planner {

// What a change costs the user, cheapest first: what is trained comes last, and of it the
// arithmetic.
enum class Price : std::uint8_t { nothing, time, hardware, task, adapters, numerics };

struct Change {
  Price price = Price::nothing;
  int level = 0;  // among changes of the same option and price: more GPUs, fewer tokens
  std::string option;  // "--gpus 8 --zero 3": in place of the values that the user gave
  std::function<void(Question&)> apply;
  std::string concession;  // what is given up, where the option does not say it
};

// By price. Only what the command line would take beside the options that were given
// (Question::given), and nothing that a file fixed (Question::fixed).
std::vector<Change> changes_for(const Question& question);

// Whether both set the same option, so that they cannot be joined.
bool share_an_option(const Change& a, const Change& b);

// What follows from all changes together: a given --global-batch is divided anew. False: it cannot.
bool settle(const Question& before, Question& changed);

}  // namespace plimsoll::planner
