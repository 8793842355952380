// Where a model's weights come from: files, or the family's own rule. Each rank reads only the
// pieces that it owns.
#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "kernels/tensor_view.h"
#include "models/lora.h"
#include "models/model_spec.h"
#include "runtime/io/bitsandbytes_checkpoint.h"

namespace plimsoll::runtime::io {

class WeightSource {
 public:
  virtual ~WeightSource() = default;

  // Elements `first` … of the parameter, in the order of its memory, as many as `into` holds, in
  // into's dtype (fp32, bf16 or fp16, rounded to nearest even). `into` is host memory; any piece,
  // in any order, from several threads at once; needs kReadBytes besides. A tied head is the table
  // that it is tied to. Error{internal}: no such parameter, or a piece beyond its end.
  // Error{bad_input}: the file cannot be read.
  virtual void read(const std::string& parameter, std::int64_t first,
                    kernels::TensorView into) const = 0;
  // How the parameter's source has it packed; nullptr: as values, which `read` gives.
  virtual const models::PackedStorage* packed_as(const std::string&) const { return nullptr; }
  // The bytes of such a one. Error{bad_input}: as read.
  virtual PackedValues packed(const std::string& parameter) const;
  virtual std::string origin() const = 0;  // "random (seed 42)", or the path
};

inline constexpr std::int64_t kReadBytes = 256 << 10;

// The safetensors files of a folder, stored as fp32, bf16 or fp16, whatever the model computes in,
// or packed by bitsandbytes (bitsandbytes_checkpoint.h). Error{bad_input}: no such files, a tensor
// missing, left over, there twice or of another shape (differences that models/checkpoint_check.h
// calls harmless are), a tied head stored beside its table with other values. Error{unsupported}:
// packed or other types.
std::unique_ptr<WeightSource> stored_weights(const models::ModelSpec& model,
                                             const std::filesystem::path& folder);

// Drawn by models/initial_values.h. Element i of a parameter depends on the seed, the parameter's
// name and i alone, so it is the same under any sharding and in a model of fewer layers.
//
// Philox's words (kernels/philox.h; key: runtime/io/keyed_random.h of the parameter's name) four by
// four: of block i / 4, normal numbers by runtime/io/normal.h, uniform ones linear in word i mod 4.
std::unique_ptr<WeightSource> random_weights(const models::ModelSpec& model, std::uint64_t seed);

// The same for adapters, under the names that PEFT's adapter file has. `path`: that file, or a
// folder with adapter_model.safetensors.
std::unique_ptr<WeightSource> stored_adapter(const std::vector<models::LoraModule>& modules,
                                             const std::filesystem::path& path);
std::unique_ptr<WeightSource> random_adapter(const std::vector<models::LoraModule>& modules,
                                             std::uint64_t seed);

}  // namespace plimsoll::runtime::io
