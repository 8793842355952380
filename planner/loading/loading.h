// What loading a model takes on the device before its first step (--phase load): every block that
// Transformers' from_pretrained, bitsandbytes, PEFT and the Trainer ask for there, in their order,
// through torch's caching allocator.
//
// Sources: transformers 5.17, modeling_utils.py (caching_allocator_warmup), core_model_loading.py
// (convert_and_load_state_dict_in_model), integrations/bitsandbytes.py; 4.57.6, modeling_utils.py
// (_load_state_dict_into_meta_model), quantizers/quantizer_bnb_*.py; bitsandbytes 0.50.2,
// nn/modules.py, functional.py, backends/cuda/ops.py; gptqmodel 7.3.4, utils/importer.py,
// utils/model.py; peft 0.21.2, utils/other.py
// (prepare_model_for_kbit_training), tuners/tuners_utils.py; and tests/golden/load_runs_*.json.
#pragma once

#include "planner/plan.h"
#include "reports/record.h"

namespace plimsoll::planner {

// Error{unsupported, bad_input}: what is not planned of a load, by name. `device`, `fits` and
// `decides` are left to who knows the step.
reports::Load load_of(const Question& question);

// What the weights are loaded in.
DType loaded_dtype(const models::ModelSpec& model, const models::Strategy& strategy);

}  // namespace plimsoll::planner
