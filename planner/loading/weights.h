// A checkpoint's tensors, one by one, as they are loaded and as they stand in the model.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "models/model_spec.h"
#include "models/run_spec.h"
#include "models/storages.h"

namespace plimsoll::planner::loading {

struct Weight {
  std::string name;  // in the checkpoint
  Count elements;
  const models::PackedStorage* packed = nullptr;  // how it is packed; nullptr: as it is
  models::PackedShape unpacked;
  bool head = false;  // of the output head
  bool transposed = false;  // GPT-2's Conv1D, which is turned round before it is packed
  bool unpacks = false;  // from MXFP4
};

// As named_parameters() lists them: rows of one layer stand together. A tied one once.
std::vector<Weight> weights_of(const models::ModelSpec& model, const models::Strategy& strategy);

// Transformers 5, core_model_loading.py, dot_natural_key: by the parts between the dots, numbers as
// numbers and before words, digits behind a word as a number.
bool comes_before(std::string_view a, std::string_view b);

}  // namespace plimsoll::planner::loading
