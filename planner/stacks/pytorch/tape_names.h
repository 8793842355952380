// What the tensors of a tape's function are called in one module.
#pragma once

#include <vector>

#include "planner/stacks/pytorch/tape/rule.h"

namespace plimsoll::planner::pytorch {

struct TapeNames {
  const char* op = "";
  std::vector<const char*> values, gradients;  // by ValueId
};

// `module`: interned (models/block.h).
const TapeNames& tape_names(const char* module, const tape::Rule& rule);

// A function in its place.
struct TapePart {
  const tape::Rule* rule = nullptr;
  const TapeNames* names = nullptr;
};
inline TapePart tape_part(const char* module, const tape::Rule& rule) {
  return {&rule, &tape_names(module, rule)};
}

}  // namespace plimsoll::planner::pytorch
