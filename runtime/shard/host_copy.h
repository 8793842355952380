// Values between the host, in fp32, and a tensor of any storage dtype on the device.
#pragma once

#include <span>

#include "runtime/device.h"

namespace plimsoll::runtime::shard {

// Rounded to nearest even. As many values as elements.
void write_values(Device& device, std::span<const float> values, kernels::TensorView to);
void read_values(Device& device, kernels::ConstTensorView from, std::span<float> values);

}  // namespace plimsoll::runtime::shard
