// What loading a model takes, as data: part of a plan's record
// (reports/record.h).
#pragma once

#include <string>
#include <vector>

#include "models/base/dtype.h"
#include "models/base/quantity.h"

namespace plimsoll::reports {

// Figures of torch's allocator while one function of the user's script runs, and after it.
struct LoadStage {
  std::string name;  // "from_pretrained"
  Bytes peak, reserved;  // at most
  Bytes resident;  // what stays
};

struct Load {
  std::vector<LoadStage> stages;
  Bytes peak, reserved, resident;  // of all stages
  // Reserved where Transformers' warm-up asks for nothing, if that is less: the warm-up takes no
  // more than the card has left, and is no need.
  Bytes needed;
  std::string stage, where;  // of the peak: which stage, and at which parameter
  DType dtype = DType::bf16;  // what the weights are loaded in
  Bytes device;  // needed, and what stands outside the allocator
  bool fits = true;
  bool decides = false;  // more must fit while the model is loaded than while it is trained
  bool merges = false;  // a trained adapter into it
};

}  // namespace plimsoll::reports
