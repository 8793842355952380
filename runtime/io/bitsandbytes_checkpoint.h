// Weights that bitsandbytes has packed, as Transformers' save_pretrained writes them and
// from_pretrained reads them.
//
// bitsandbytes 0.50.2: QuantState.as_dict and from_dict (functional.py), Linear4bit and
// Linear8bitLt (nn/modules.py). Beside the codes of `X.weight`, [n / 2, 1] in uint8 or in what
// bnb_4bit_quant_storage says, stand its `.absmax` (the scales), `.quant_map`, where scales are
// quantized `.nested_absmax` and `.nested_quant_map`, and `.quant_state.bitsandbytes__nf4`, a JSON
// text as bytes. LLM.int8(): `X.weight` int8 [out, in], `X.SCB` fp32 [out] (the scales), and
// `X.weight_format` (0, or absent: by rows).
#pragma once

#include <cstddef>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "kernels/packed_weights.h"
#include "models/safetensors_reader.h"
#include "models/storages.h"
#include "runtime/io/file.h"
#include "runtime/io/weight_file.h"

namespace plimsoll::runtime::io {

// A packed weight on the host: the bytes of what kernels::PackedWeight has.
struct PackedValues {
  DType code_dtype = DType::uint8, scale_dtype = DType::fp32;
  std::int64_t block = kernels::kPackedBlock;
  std::vector<std::byte> codes, scales, scale_scales, offset;

  kernels::PackedWeight view() const;
};

using InputFiles = std::map<std::string, InputFile>;  // opened once each

// Where a checkpoint has one.
struct StoredPacking {
  const models::PackedStorage* storage = nullptr;
  std::int64_t block = 0;
  models::StoredTensor codes, scales;
  std::optional<models::StoredTensor> scale_scales = {};
  float offset = 0;
};

// Of tensor number `tensor`, the weight of a parameter of this shape. Nothing: bitsandbytes has not
// packed it. Appends the numbers of the tensors that belong to it to `companions`.
// Error{unsupported}: packed in a way that our kernels do not have. Error{bad_input}: what belongs
// to it is missing, of another size, or no such text.
std::optional<StoredPacking> find_packing(const models::Checkpoint& checkpoint, std::size_t tensor,
                                          const models::Shape& shape, InputFiles& files,
                                          std::vector<std::size_t>& companions);
PackedValues read_packing(const StoredPacking& packing, const InputFiles& files);

struct SavedBytes {
  SavedTensor tensor;
  std::vector<std::byte> bytes;
};
// What a checkpoint has of the linear's weight `name` [out, in], which is `dtype` when it is not
// packed. Of nf4, nf4-dq and int8.
std::vector<SavedBytes> bitsandbytes_tensors(const std::string& name,
                                             const kernels::PackedWeight& weight,
                                             const kernels::Extents& shape, DType dtype);

// A model's config.json, saying that its linears are packed so; nullptr: that they are not.
std::string config_packed_as(const std::string& config, const models::PackedStorage* storage,
                             DType compute);

}  // namespace plimsoll::runtime::io
