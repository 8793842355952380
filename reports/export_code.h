// The parts of a plan that no option of Transformers, Accelerate or DeepSpeed switches on, as code
// for the exported snippet.
#pragma once

#include <string>
#include <vector>

#include "models/workload_reader.h"

namespace plimsoll::reports {

// In words: "chunked loss", "a checkpoint around every 4 layers". Empty where options do it all.
std::vector<std::string> needed_code(const models::Strategy& strategy);
// The same as one sentence for an answer, with the command that writes the code; "" where none is
// needed.
std::string needed_code_note(const models::Strategy& strategy);

// Whether nobody knows that code: a core attention's checkpoint in Transformers before 4.53.
bool no_code_known(const models::Strategy& strategy);

struct TrainingCode {
  std::vector<std::string> imports;  // "import math", in any order
  std::string before_model;  // functions and classes
  std::string on_model;  // calls, for the model as it was loaded
  std::string trainer = "Trainer";  // the class that trains
  std::string on_trainer;  // statements about `made`, the trainer
};
// Throws Error{unsupported} where no code is known.
TrainingCode training_code(const models::Workload& workload);

}  // namespace plimsoll::reports
