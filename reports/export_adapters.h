// PEFT's configs in a Python snippet (peft 0.21).
#pragma once

#include <string>

#include "models/workload_reader.h"

namespace plimsoll::reports {

// "peft_config = LoraConfig(…)" and what makes the model of it; "" without adapters.
std::string adapters_code(const models::Workload& workload);
const char* adapters_class(const models::Lora& lora);

// Whether the model is a classifier of sequences.
bool classifies(const models::Workload& workload);

}  // namespace plimsoll::reports
