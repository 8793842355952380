// What PEFT and the Trainer do to a model that is loaded, on the device.
#pragma once

#include "planner/loading/from_pretrained.h"

namespace plimsoll::planner::loading {

// prepare_model_for_kbit_training: every 16-bit parameter that is not packed becomes fp32, one by
// one; then the cache is emptied.
void prepare_for_kbit(LoadedModel& model, Device& device);

// _get_base_layer_device_and_dtype: what a 4-bit linear computes in, else the weight's own dtype,
// unless that is an integer.
DType adapters_made_in(const models::Strategy& strategy, DType loaded);

// get_peft_model on a model that is there: A and B of each module in what its base computes in,
// then in the adapters' dtype.
void add_adapters(const Question& question, const LoadedModel& model, Device& device);

// Trainer, place_model_on_device: model.to("cuda") of what stands on the host, parameter by
// parameter.
void move_to_device(const Question& question, const LoadedModel& model, Device& device);

}  // namespace plimsoll::planner::loading
