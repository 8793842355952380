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

// A and B of each adapted weight, as named_modules() lists them.
struct Adapters {
  struct Pair {
    std::size_t weight;
    Device::Block a, b;
  };
  std::vector<Pair> pairs;
};

// get_peft_model on a model that is there: A and B of each module in what its base computes in,
// then in the adapters' dtype.
Adapters add_adapters(const Question& question, const LoadedModel& model, Device& device);

// PeftModel.from_pretrained: the same, and then each is read to the device once more, in the order
// of names, and copied to its place (peft 0.21.2, utils/save_and_load.py).
Adapters load_adapters(const Question& question, const LoadedModel& model, Device& device);

// merge_and_unload of the adapters that were loaded.
void merge_adapters(const Question& question, LoadedModel& model, const Adapters& adapters,
                    Packer& packer, Device& device);

// Trainer, place_model_on_device: model.to("cuda") of what stands on the host, parameter by
// parameter.
void move_to_device(const Question& question, const LoadedModel& model, Device& device);

}  // namespace plimsoll::planner::loading
