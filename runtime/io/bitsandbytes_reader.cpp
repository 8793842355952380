#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <nlohmann/json.hpp>
#include <span>

#include "kernels/dynamic_map.h"
#include "runtime/io/bitsandbytes_checkpoint.h"

namespace plimsoll::runtime::io {

namespace {
using models::Checkpoint;
using models::StoredTensor;
using nlohmann::json;

std::int64_t bytes_of(const StoredTensor& tensor) {
  const std::optional<DType> dtype = dtype_from(tensor.dtype);
  check(dtype.has_value(), ErrorKind::unsupported, [&] {
    return fmt::format("{}: tensor '{}' is stored as {}", tensor.file, tensor.name.substr(0, 100),
                       tensor.dtype);
  });
  return storage(tensor.elements(), *dtype).value();
}

std::vector<std::byte> read_tensor(const StoredTensor& tensor, const InputFile& file) {
  std::vector<std::byte> bytes(static_cast<std::size_t>(bytes_of(tensor)));
  file.read(tensor.begin, bytes);
  return bytes;
}

// One weight's packing, being found.
class Search {
 public:
  Search(const Checkpoint& checkpoint, std::size_t tensor, const models::Shape& shape,
         InputFiles& files, std::vector<std::size_t>& companions)
      : checkpoint_(checkpoint),
        weight_(checkpoint.tensors[tensor]),
        shape_(shape),
        files_(files),
        companions_(companions) {}

  std::optional<StoredPacking> run() {
    auto packing = find_packing();
    if (!packing) return {};
    for (const StoredTensor* tensor : {&packing->codes, &packing->scales,
                                       packing->scale_scales ? &*packing->scale_scales : nullptr})
      if (tensor != nullptr) files_.try_emplace(tensor->file, tensor->file);
    return packing;
  }

 private:
  static constexpr std::string_view kState = ".quant_state.bitsandbytes__", kWeight = ".weight";

  std::optional<StoredPacking> find_packing() {
    if (const StoredTensor* state = beginning_with(weight_.name + std::string(kState)))
      return four_bits(*state);
    if (weight_.dtype != "I8" || !weight_.name.ends_with(kWeight)) return {};
    const std::string module = weight_.name.substr(0, weight_.name.size() - kWeight.size());
    if (find(module + ".SCB") == nullptr) return {};
    return eight_bits(module);
  }

  [[noreturn]] void refuse(ErrorKind kind, const std::string& why) const {
    fail(kind, fmt::format("{}: '{}' {}", weight_.file, weight_.name.substr(0, 100), why));
  }

  std::vector<std::byte> read(const StoredTensor& tensor) {
    return read_tensor(tensor, files_.try_emplace(tensor.file, tensor.file).first->second);
  }

  const StoredTensor* beginning_with(const std::string& name) {
    const auto& tensors = checkpoint_.tensors;  // sorted by name
    const auto at = std::ranges::lower_bound(tensors, name, {}, &StoredTensor::name);
    if (at == tensors.end() || !at->name.starts_with(name)) return nullptr;
    companions_.push_back(static_cast<std::size_t>(at - tensors.begin()));
    return &*at;
  }
  const StoredTensor* find(const std::string& name) {
    const StoredTensor* found = beginning_with(name);
    if (found == nullptr || found->name == name) return found;
    companions_.pop_back();
    return nullptr;
  }
  // Of so many elements of `dtype`.
  const StoredTensor& needed(const std::string& name, std::string_view dtype, std::int64_t count) {
    const StoredTensor* found = find(name);
    if (found == nullptr) refuse(ErrorKind::bad_input, "is packed, and " + name + " is not there");
    if (found->dtype != dtype || found->elements() != Count(count))
      refuse(ErrorKind::bad_input,
             fmt::format("is packed, and {} is {} {} values where it needs {} {}", name,
                         found->elements().value(), found->dtype, count, dtype));
    return *found;
  }
  void expect_table(const std::string& name, std::span<const float> values) {
    const std::vector<std::byte> bytes = read(needed(name, "F32", std::ssize(values)));
    if (std::memcmp(bytes.data(), values.data(), bytes.size()) != 0)
      refuse(ErrorKind::unsupported,
             "is packed with a table of values of its own (" + name + "), which is not supported");
  }

  json parsed(const StoredTensor& state) {
    constexpr std::int64_t kLongest = 4096;
    if (state.dtype != "U8" || state.elements() > Count(kLongest))
      refuse(ErrorKind::bad_input, "is packed, and " + state.name + " is no text");
    const std::vector<std::byte> bytes = read(state);
    const std::string text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
    json document = json::parse(text, nullptr, false);
    if (!document.is_object())
      refuse(ErrorKind::bad_input, "is packed, and " + state.name + " is no JSON object");
    return document;
  }
  void expect(const json& state, const char* key, const json& value) const {
    const auto it = state.find(key);
    if (it == state.end() || *it != value)
      refuse(ErrorKind::unsupported,
             fmt::format("is packed with {} {}: {} is supported", key,
                         it == state.end() ? "missing" : it->dump().substr(0, 100), value.dump()));
  }

  std::optional<StoredPacking> four_bits(const StoredTensor& text) {
    const json state = parsed(text);
    expect(state, "quant_type", "nf4");
    expect(state, "blocksize", kernels::kPackedBlock);
    const auto axes = std::span(shape_.axes).first(static_cast<std::size_t>(shape_.rank));
    expect(state, "shape", json(std::vector<std::int64_t>(axes.begin(), axes.end())));
    const bool nested = state.contains("nested_blocksize");
    StoredPacking packing{.storage = models::find_packed_storage(nested ? "nf4-dq" : "nf4"),
                          .block = kernels::kPackedBlock,
                          .codes = weight_};
    const std::int64_t values = shape_.elements().value();
    if (bytes_of(weight_) != ceil_divide(values, std::int64_t{2}))
      refuse(ErrorKind::bad_input,
             fmt::format("is {} bytes, and {} values in 4 bits are {}", bytes_of(weight_), values,
                         ceil_divide(values, std::int64_t{2})));
    const std::int64_t blocks = ceil_divide(values, kernels::kPackedBlock);
    expect_table(weight_.name + ".quant_map", kernels::kNf4);
    packing.scales = needed(weight_.name + ".absmax", nested ? "U8" : "F32", blocks);
    if (!nested) return packing;
    expect(state, "nested_blocksize", kernels::kScaleBlock);
    if (!state.contains("nested_offset") || !state["nested_offset"].is_number())
      refuse(ErrorKind::bad_input, "is packed, and nested_offset is no number");
    packing.offset = state["nested_offset"].get<float>();
    expect_table(weight_.name + ".nested_quant_map", kernels::kSignedMap.value);
    packing.scale_scales =
        needed(weight_.name + ".nested_absmax", "F32", ceil_divide(blocks, kernels::kScaleBlock));
    return packing;
  }

  std::optional<StoredPacking> eight_bits(const std::string& module) {
    const auto axes = std::span(shape_.axes).first(static_cast<std::size_t>(shape_.rank));
    if (axes.size() != 2 || !std::ranges::equal(weight_.shape, axes))
      refuse(ErrorKind::bad_input, "is packed in another shape than the model's");
    if (const StoredTensor* format = find(module + ".weight_format")) {
      const bool rows = format->dtype == "U8" && format->elements() == Count(1) &&
                        read(*format).front() == std::byte{0};
      if (!rows)
        refuse(ErrorKind::unsupported,
               "is packed in tiles (weight_format is not 0), which "
               "bitsandbytes has not read since 0.45 either");
    }
    return StoredPacking{.storage = models::find_packed_storage("int8"),
                         .block = axes[1],
                         .codes = weight_,
                         .scales = needed(module + ".SCB", "F32", axes[0])};
  }

  const Checkpoint& checkpoint_;
  const StoredTensor& weight_;
  const models::Shape& shape_;
  InputFiles& files_;
  std::vector<std::size_t>& companions_;
};

template <class T>
kernels::ConstTensorView row_of(const std::vector<T>& bytes, DType dtype) {
  if (bytes.empty()) return {};
  return {bytes.data(), dtype, {std::ssize(bytes) * 8 / bits(dtype)}};
}
}  // namespace

kernels::PackedWeight PackedValues::view() const {
  return {.codes = row_of(codes, code_dtype),
          .scales = row_of(scales, scale_dtype),
          .scale_scales = row_of(scale_scales, DType::fp32),
          .offset = row_of(offset, DType::fp32),
          .block = block};
}

std::optional<StoredPacking> find_packing(const Checkpoint& checkpoint, std::size_t tensor,
                                          const models::Shape& shape, InputFiles& files,
                                          std::vector<std::size_t>& companions) {
  return Search(checkpoint, tensor, shape, files, companions).run();
}

PackedValues read_packing(const StoredPacking& packing, const InputFiles& files) {
  PackedValues values{.code_dtype = packing.storage->bits == 8 ? DType::int8 : DType::uint8,
                      .scale_dtype = packing.storage->scale,
                      .block = packing.block,
                      .codes = read_tensor(packing.codes, files.at(packing.codes.file)),
                      .scales = read_tensor(packing.scales, files.at(packing.scales.file))};
  if (!packing.scale_scales) return values;
  values.scale_scales = read_tensor(*packing.scale_scales, files.at(packing.scale_scales->file));
  values.offset.resize(sizeof packing.offset);
  std::memcpy(values.offset.data(), &packing.offset, sizeof packing.offset);
  return values;
}

}  // namespace plimsoll::runtime::io
