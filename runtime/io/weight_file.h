// Writes tensors as a safetensors file (models/safetensors_reader.h has the format).
#pragma once

#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "kernels/tensor_view.h"
#include "runtime/io/file.h"

namespace plimsoll::runtime::io {

struct SavedTensor {
  std::string name;
  DType dtype = DType::fp32;  // fp32, bf16 or fp16; uint8 and int8: bytes
  kernels::Extents shape;
};

// The first bytes of such a file, its length included; `begins`: where each tensor's data begin
// behind them. Tensors stand in the order given; wide types first, so that each begins at a
// multiple of its width. Error{internal}: a name twice.
std::string safetensors_header(const std::vector<SavedTensor>& tensors,
                               std::vector<std::int64_t>& begins);

// A file of known tensors that is filled piece by piece; by one thread at a time.
class WeightFile {
 public:
  // Writes the header. Error{bad_input}: the file cannot be made. Error{internal}: a name twice.
  WeightFile(const std::filesystem::path& path, std::vector<SavedTensor> tensors);

  // Elements `first` … of a tensor, rounded to the tensor's dtype; each one once, from host memory.
  void write(const std::string& name, std::int64_t first, kernels::ConstTensorView from);
  // All of a tensor, as it is.
  void write_bytes(const std::string& name, std::span<const std::byte> bytes);
  // Puts the file into its place. Error{internal}: elements are missing.
  void finish();

 private:
  struct Place {
    DType dtype;
    std::int64_t begin, elements, written;
  };
  Place& place_of(const std::string& name);

  std::map<std::string, Place> places_;
  OutputFile file_;
};

}  // namespace plimsoll::runtime::io
