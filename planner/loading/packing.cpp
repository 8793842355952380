#include "planner/loading/packing.h"

#include <utility>

#include "models/storages.h"

namespace plimsoll::planner::loading {

using models::PackedGemm;
using models::PackedStorage;
using Blocks = std::vector<Device::Block>;

namespace {
constexpr std::int64_t kStateText = 180;  // quant_state.bitsandbytes__nf4, at most a block
}

Blocks Packer::pack(const Weight& weight, DType dtype, Source source) {
  if (weight.packed->gemm == PackedGemm::int8) return to_int8(weight);
  std::optional<Device::Block> copy;
  if (source == Source::copied) copy = device_.take(weight.elements, dtype);
  Blocks blocks = quantize_4bit(weight);
  if (copy) device_.free(*copy);
  return blocks;
}

// Bnb4bitDeserialize, Bnb8bitDeserialize: what the checkpoint has of a weight is what the model
// has, in the order of names (threads load, and may be ahead). A text or a mark of a few bytes
// goes as it is read; what all scales are moved by stands in that text.
Blocks Packer::load_packed(const Weight& weight) {
  Blocks blocks;
  for (const models::PackedTensor& part :
       models::packed_tensors(*weight.packed, weight.unpacked, quantize_->held_in))
    blocks.push_back(device_.take(part.bytes()));
  if (weight.packed->grouped) return blocks;
  const bool rows = weight.packed->gemm == PackedGemm::int8;
  device_.take_and_free(rows ? Bytes(1) : Bytes(kStateText));
  return blocks;
}

// Of a weight that was on the host: a copy in fp16, then rows' scales and values.
Blocks Packer::to_int8(const Weight& weight) {
  const Device::Block copy = device_.take(weight.elements, DType::fp16);
  const Device::Block scales = device_.take(Count(weight.unpacked.out), weight.packed->scale);
  const Device::Block values = device_.take(weight.elements, DType::int8);
  device_.free(copy);
  return {values, scales};
}

Blocks Packer::quantize_4bit(const Weight& weight) {
  const PackedStorage& of = *weight.packed;
  const auto parts = models::packed_tensors(of, weight.unpacked, quantize_->held_in);
  const Count scales = parts[1].elements;
  const Device::Block absmax = device_.take(scales, DType::fp32);
  Blocks blocks{device_.take(parts[0].bytes())};
  // get_4bit_type divides the table by its largest value.
  blocks.push_back(device_.take(Count(of.table), DType::fp32));
  const Device::Block magnitudes = device_.take(Count(of.table), DType::fp32);
  device_.take_and_free(storage(Count(1), DType::fp32));
  device_.free(magnitudes);
  if (!of.doubly_quantized()) {
    blocks.push_back(absmax);
    return blocks;
  }
  blocks.push_back(device_.take(Count(of.offsets), DType::fp32));
  const Device::Block moved = device_.take(scales, DType::fp32);
  // quantize_blockwise: the values that packed scales stand for, made once (name2qmap), and a
  // copy for each weight.
  if (!std::exchange(has_table_, true)) device_.take(Count(of.scale_table), DType::fp32);
  blocks.push_back(device_.take(parts[3].bytes()));
  blocks.push_back(device_.take(parts[1].bytes()));
  blocks.push_back(device_.take(Count(of.scale_table), DType::fp32));
  device_.free(moved);
  device_.free(absmax);
  return blocks;
}

}  // namespace plimsoll::planner::loading
