// What a safetensors checkpoint says about itself: names, dtypes and shapes from the headers of its
// files. Tensor data is never read.
//
// Format (github.com/huggingface/safetensors, README): 8 bytes little-endian length N, N bytes of
// JSON {"name": {"dtype", "shape", "data_offsets": [begin, end]}}, then the data.
#pragma once

#include <filesystem>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "models/base/dtype.h"
#include "models/base/quantity.h"

namespace plimsoll::models {

struct StoredTensor {
  std::string name;
  std::string dtype;  // as written: "BF16"; "" where only the index was there
  std::vector<std::int64_t> shape;
  std::string file;  // that holds it; "" where only the index was there
  std::int64_t begin = 0;  // byte of the file at which its data begins

  Count elements() const;
};

struct Checkpoint {
  std::string source;  // the file or index that was read
  std::vector<StoredTensor> tensors;  // sorted by name
  // False where the index's files are not there: names are known, shapes are not.
  bool has_shapes = true;
  std::optional<Bytes> total_bytes;  // metadata.total_size of an index

  Count elements() const;
};

// One *.safetensors file. Error{bad_input}: truncated, a header that does not fit into the file or
// is no JSON of that form, offsets that leave the file, overlap, or do not match dtype and shape.
Checkpoint read_safetensors_header(const std::filesystem::path& file);

// The same of a file that is elsewhere. `file`: its name in messages; `size`: of all of it;
// `first`: its first 8 bytes or more. The length N of its header, at most 100 MB.
inline constexpr std::size_t kSafetensorsPrefix = 8;
std::uint64_t safetensors_header_bytes(const std::string& file, std::string_view first,
                                       std::uint64_t size);
// `text`: its header, the N bytes behind the first 8.
Checkpoint parse_safetensors_header(const std::string& file, std::string_view text,
                                    std::uint64_t size);

// model.safetensors.index.json: which files there are, and all tensors by name. Error{bad_input}:
// not of that form, or a file outside of its folder.
struct SafetensorsIndex {
  std::set<std::string> files, tensors;
  std::optional<Bytes> total_bytes;
};
SafetensorsIndex parse_safetensors_index(const std::string& source, const std::string& text);
Checkpoint names_of_index(const std::string& source, const SafetensorsIndex& index);

// The name of a weight file of the folder that is a Git LFS pointer; nothing where none is.
std::optional<std::string> lfs_pointer_in(const std::filesystem::path& folder);

// The checkpoint of a model folder: model.safetensors.index.json and the files that it names, or
// model.safetensors, or shards without an index; nothing where there is none.
std::optional<Checkpoint> find_checkpoint(const std::filesystem::path& folder);

}  // namespace plimsoll::models
