// A weight packed on the device, as bitsandbytes does.
//
// bitsandbytes 0.50.2, nn/modules.py (Params4bit._quantize, Int8Params._quantize), functional.py
// (quantize_4bit, quantize_blockwise), backends/cuda/ops.py.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "models/run_spec.h"
#include "planner/loading/device.h"
#include "planner/loading/weights.h"

namespace plimsoll::planner::loading {

class Packer {
 public:
  // Whether a weight in 4 bits is made of what is on the device, or of a copy of that.
  enum class Source : std::uint8_t { there, copied };

  Packer(const std::optional<models::Quantization>& quantize, Device& device)
      : quantize_(quantize), device_(device) {}

  // Of a weight in this dtype. The blocks that stay.
  std::vector<Device::Block> pack(const Weight& weight, DType dtype, Source source);
  // What a packed checkpoint has of it.
  std::vector<Device::Block> load_packed(const Weight& weight);

 private:
  std::vector<Device::Block> to_int8(const Weight& weight);
  std::vector<Device::Block> quantize_4bit(const Weight& weight);

  const std::optional<models::Quantization>& quantize_;
  Device& device_;
  bool has_table_ = false;
};

}  // namespace plimsoll::planner::loading
