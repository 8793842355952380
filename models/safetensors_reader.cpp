#include "models/safetensors_reader.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "models/base/utf8.h"
#include "models/json_reader.h"

namespace plimsoll::models {

namespace {
namespace fs = std::filesystem;
using nlohmann::json;

// The format's own limit (safetensors/src/tensor.rs, MAX_HEADER_SIZE).
constexpr std::uint64_t kMostHeaderBytes = 100'000'000;
constexpr std::int64_t kMostIndexBytes = 256 << 20;
constexpr const char* kNoPrefix = "truncated: a safetensors file begins with 8 bytes of length";

// Bits of one element; nothing for a dtype that we have not heard of.
std::optional<std::int64_t> bits_of(std::string_view dtype) {
  static const std::map<std::string_view, std::int64_t> kBits{
      {"BOOL", 8}, {"U8", 8},   {"I8", 8},   {"F8_E4M3", 8}, {"F8_E5M2", 8}, {"F8_E8M0", 8},
      {"F4", 4},   {"U16", 16}, {"I16", 16}, {"F16", 16},    {"BF16", 16},   {"U32", 32},
      {"I32", 32}, {"F32", 32}, {"U64", 64}, {"I64", 64},    {"F64", 64}};
  const auto it = kBits.find(dtype);
  return it == kBits.end() ? std::nullopt : std::optional(it->second);
}

struct Extent {
  std::int64_t begin, end;
  std::string name;
};

[[noreturn]] void refuse(const std::string& file, const std::string& what) {
  fail(ErrorKind::bad_input, file + ": " + what);
}

std::optional<std::int64_t> natural(const json& value) {
  if (!value.is_number_integer() || value < 0) return std::nullopt;
  if (value.is_number_unsigned() && value.get<std::uint64_t>() > INT64_MAX) return std::nullopt;
  return value.get<std::int64_t>();
}

std::string cut(const std::string& name) {
  return shortened(name, 100);
}

// Also checks the entry; `data_bytes`: what the file has behind the header.
StoredTensor read_entry(const std::string& file, const std::string& name, const json& entry,
                        std::int64_t data_bytes, std::vector<Extent>& extents) {
  const auto bad = [&](const char* what) { refuse(file, "tensor '" + cut(name) + "': " + what); };
  StoredTensor tensor{.name = name, .dtype = {}, .shape = {}, .file = file};
  if (!entry.is_object() || !entry.contains("dtype") || !entry["dtype"].is_string() ||
      !entry.contains("shape") || !entry["shape"].is_array() || !entry.contains("data_offsets") ||
      !entry["data_offsets"].is_array() || entry["data_offsets"].size() != 2)
    bad("dtype, shape and two data_offsets are needed");
  tensor.dtype = entry["dtype"];
  for (const json& length : entry["shape"]) {
    const auto axis = natural(length);
    if (!axis) bad("its shape is not of whole numbers");
    tensor.shape.push_back(*axis);
  }
  const auto begin = natural(entry["data_offsets"][0]), end = natural(entry["data_offsets"][1]);
  if (!begin || !end || *begin > *end) bad("its data_offsets are no range");
  if (*end > data_bytes)
    refuse(file, fmt::format("truncated: tensor '{}' ends at byte {} of the data, the file has {}",
                             cut(name), *end, data_bytes));
  const auto bits = bits_of(tensor.dtype);
  if (bits) {
    const std::int64_t all = checked_multiply(tensor.elements().value(), *bits);
    if (ceil_divide(all, 8) != *end - *begin) bad("its data_offsets do not fit dtype and shape");
  }
  tensor.begin = *begin;  // of the data, as yet
  extents.push_back({*begin, *end, name});
  return tensor;
}

void check_extents(const std::string& file, std::vector<Extent>& extents) {
  std::ranges::sort(extents, {}, [](const Extent& e) { return std::pair(e.begin, e.end); });
  for (std::size_t i = 1; i < extents.size(); ++i)
    if (extents[i].begin < extents[i - 1].end)
      refuse(file, fmt::format("tensors '{}' and '{}' overlap", cut(extents[i - 1].name),
                               cut(extents[i].name)));
}

std::string header_text(const std::string& file, std::uint64_t& size) {
  std::error_code error;
  const fs::file_status status = fs::status(file, error);
  if (!fs::exists(status)) refuse(file, "no such file");
  if (!fs::is_regular_file(status)) refuse(file, "not a regular file");
  size = fs::file_size(file, error);
  std::ifstream in(file, std::ios::binary);
  std::string text(kSafetensorsPrefix, '\0');
  if (error || size < text.size() || !in.read(text.data(), std::ssize(text)))
    refuse(file, kNoPrefix);
  const std::uint64_t length = safetensors_header_bytes(file, text, size);
  text.resize(length);
  if (!in.read(text.data(), static_cast<std::streamsize>(length)))
    refuse(file, "its header cannot be read");
  return text;
}

void sort_by_name(Checkpoint& checkpoint) {
  std::ranges::sort(checkpoint.tensors, {}, &StoredTensor::name);
}

// Only a file of the index's own folder may be named.
void check_file_name(const std::string& index, const std::string& file) {
  if (file.empty() || file.find('/') != std::string::npos || file == "." || file == "..")
    refuse(index, "weight_map names '" + cut(file) + "', which is no file of this folder");
}

}  // namespace

SafetensorsIndex parse_safetensors_index(const std::string& source, const std::string& text) {
  const json index = parse_json(text, source);
  SafetensorsIndex out;
  if (!index.is_object() || !index.contains("weight_map") || !index["weight_map"].is_object())
    refuse(source, "an object with a weight_map is needed");
  if (index.contains("metadata") && index["metadata"].is_object())
    if (const auto total = natural(index["metadata"].value("total_size", json())))
      out.total_bytes = Bytes(*total);
  for (const auto& [name, file] : index["weight_map"].items()) {
    if (!file.is_string()) refuse(source, "weight_map: '" + cut(name) + "' has no file name");
    check_file_name(source, file);
    out.tensors.insert(name);
    out.files.insert(file);
  }
  return out;
}

Checkpoint names_of_index(const std::string& source, const SafetensorsIndex& index) {
  Checkpoint checkpoint{
      .source = source, .tensors = {}, .has_shapes = false, .total_bytes = index.total_bytes};
  for (const std::string& name : index.tensors) checkpoint.tensors.push_back({.name = name});
  return checkpoint;
}

namespace {
Checkpoint read_index(const fs::path& path) {
  const std::string source = path.string();
  const SafetensorsIndex index =
      parse_safetensors_index(source, read_text_file(source, kMostIndexBytes));
  Checkpoint checkpoint{
      .source = source, .tensors = {}, .has_shapes = true, .total_bytes = index.total_bytes};
  for (const std::string& file : index.files)
    if (!fs::exists(path.parent_path() / file)) return names_of_index(source, index);
  for (const std::string& file : index.files)
    for (StoredTensor& tensor : read_safetensors_header(path.parent_path() / file).tensors)
      checkpoint.tensors.push_back(std::move(tensor));
  sort_by_name(checkpoint);
  return checkpoint;
}

// The *.safetensors files of a folder that hold the model: "model*.safetensors" before any other.
std::vector<fs::path> weight_files(const fs::path& folder) {
  std::vector<fs::path> model, other;
  std::error_code error;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder, error)) {
    const std::string name = entry.path().filename().string();
    if (!name.ends_with(".safetensors") || name.starts_with("adapter_")) continue;
    (name.starts_with("model") ? model : other).push_back(entry.path());
  }
  std::vector<fs::path>& chosen = model.empty() ? other : model;
  std::ranges::sort(chosen);
  return chosen;
}
}  // namespace

Count StoredTensor::elements() const {
  std::int64_t n = 1;
  for (const std::int64_t axis : shape) n = checked_multiply(n, axis);
  return Count(n);
}

Count Checkpoint::elements() const {
  Count total;
  for (const StoredTensor& tensor : tensors) total += tensor.elements();
  return total;
}

std::uint64_t safetensors_header_bytes(const std::string& file, std::string_view first,
                                       std::uint64_t size) {
  if (first.size() < kSafetensorsPrefix) refuse(file, kNoPrefix);
  std::uint64_t length = 0;
  for (std::size_t i = kSafetensorsPrefix; i-- > 0;)
    length = length << 8 | static_cast<unsigned char>(first[i]);
  if (is_lfs_pointer(first.substr(0, kSafetensorsPrefix)))
    refuse(file, "is a Git LFS pointer, not the weights: run git lfs pull");
  if (length > kMostHeaderBytes)
    refuse(file, fmt::format("not safetensors: a header of {} bytes (at most {})", length,
                             kMostHeaderBytes));
  if (size < kSafetensorsPrefix || length > size - kSafetensorsPrefix)
    refuse(file, fmt::format("truncated: a header of {} bytes in a file of {}", length, size));
  return length;
}

Checkpoint read_safetensors_header(const fs::path& path) {
  std::uint64_t size = 0;
  const std::string text = header_text(path.string(), size);
  return parse_safetensors_header(path.string(), text, size);
}

Checkpoint parse_safetensors_header(const std::string& file, std::string_view text,
                                    std::uint64_t size) {
  const auto data_begin = static_cast<std::int64_t>(kSafetensorsPrefix + text.size());
  const std::int64_t data_bytes = static_cast<std::int64_t>(size) - data_begin;
  const json header = parse_json(text, file + ": header");
  if (!header.is_object()) refuse(file, "its header is not a JSON object");
  Checkpoint checkpoint{.source = file, .tensors = {}, .has_shapes = true, .total_bytes = {}};
  std::vector<Extent> extents;
  for (const auto& [name, entry] : header.items())
    if (name != "__metadata__")
      checkpoint.tensors.push_back(read_entry(file, name, entry, data_bytes, extents));
  for (StoredTensor& tensor : checkpoint.tensors) tensor.begin += data_begin;
  check_extents(file, extents);
  sort_by_name(checkpoint);
  return checkpoint;
}

std::optional<std::string> lfs_pointer_in(const fs::path& folder) {
  constexpr std::uintmax_t kMostPointerBytes = 1024;  // git-lfs, docs/spec.md
  for (const fs::path& file : weight_files(folder)) {
    std::error_code error;
    if (fs::file_size(file, error) >= kMostPointerBytes || error) continue;
    if (is_lfs_pointer(read_text_file(file.string(), kMostPointerBytes)))
      return file.filename().string();
  }
  return std::nullopt;
}

std::optional<Checkpoint> find_checkpoint(const fs::path& folder) {
  std::error_code error;
  const fs::path index = folder / "model.safetensors.index.json";
  if (fs::exists(index, error)) return read_index(index);
  if (fs::exists(folder / "model.safetensors", error))
    return read_safetensors_header(folder / "model.safetensors");
  const std::vector<fs::path> files = weight_files(folder);
  if (files.empty()) return std::nullopt;
  Checkpoint all{.source = folder.string(), .tensors = {}, .has_shapes = true, .total_bytes = {}};
  for (const fs::path& file : files)
    for (StoredTensor& tensor : read_safetensors_header(file).tensors)
      all.tensors.push_back(std::move(tensor));
  sort_by_name(all);
  return all;
}

}  // namespace plimsoll::models
