// Transformers' from_pretrained where weights go to the device, one after another.
#pragma once

#include <vector>

#include "planner/loading/device.h"
#include "planner/loading/packing.h"
#include "planner/loading/weights.h"
#include "planner/plan.h"

namespace plimsoll::planner::loading {

// The first release with core_model_loading.py: weights are loaded in the checkpoint's dtype,
// before in fp32 or, packed, in fp16; cast on the host, before on the device; in the order of the
// numbers in their names.
inline constexpr models::Release kLoadsInOrder{5, 0, 0};

struct LoadedModel {
  std::vector<Weight> weights;  // as named_parameters() lists them
  DType dtype;  // what those that are not packed are loaded in
  // Of each weight the blocks that it is now in: one, of a packed one several.
  std::vector<std::vector<Device::Block>> blocks = {};
  // What is in MXFP4 still.
  struct Packed {
    std::size_t weight;
    Device::Block values, scales;
  };
  std::vector<Packed> packed = {};
};

void warm_up(const Question& question, const LoadedModel& model, Device& device);
void from_pretrained(const Question& question, LoadedModel& model, Packer& packer, Device& device);

// Buffers that are in no checkpoint: frequencies of the rotary embedding, an embedding's scale.
void take_buffers(const Question& question, Device& device);

}  // namespace plimsoll::planner::loading
