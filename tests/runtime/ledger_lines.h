// Tables of what a step does to memory, op by op, made by hand and held against the ledger.
//
// Numbers are elements of the compute dtype for each token beyond what is resident (gradients are
// there before the step).
#pragma once

#include "tests/runtime/tiny_model.h"

namespace plimsoll::runtime::test {

struct Line {
  const char* op;
  std::int64_t after;
  std::int64_t high = 0;  // where it is more than both the op before and the op itself leave
  Phase phase = Phase::forward;
};
using Lines = std::vector<Line>;

// With `prefix` before each name; in `phase` where a line has none of its own.
Lines behind(const std::string& prefix, Phase phase, Lines lines);
Lines together(std::initializer_list<Lines> parts);

// A step of 6 tokens, in `sequences`, with random weights.
Batch six_tokens(std::int64_t sequences);
void check_ledger(const models::ModelSpec& spec, const models::Strategy& strategy,
                  std::int64_t sequences, const Lines& lines);

}  // namespace plimsoll::runtime::test
