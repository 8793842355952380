// What has equal sizes in a program whatever the batch: the layers of one checkpoint.
#pragma once

#include <cstdint>
#include <vector>

#include "models/step_program.h"

namespace plimsoll::planner {

struct EqualSizes {
  // `count` times `length` ops one after another, each with the scratch of the one `length` before.
  struct Blocks {
    std::uint32_t begin = 0, length = 0, count = 0;
    bool operator==(const Blocks&) const = default;
  };
  std::vector<models::TensorId> tensors;  // for each the first one that has its bytes
  std::vector<Blocks> ops;  // apart from one another, ascending
  bool operator==(const EqualSizes&) const = default;
};

}  // namespace plimsoll::planner
