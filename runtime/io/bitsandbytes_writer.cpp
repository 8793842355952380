#include <fmt/format.h>

#include <cstring>
#include <nlohmann/json.hpp>
#include <span>

#include "kernels/dynamic_map.h"
#include "models/base/torch_names.h"
#include "runtime/io/bitsandbytes_checkpoint.h"

namespace plimsoll::runtime::io {

namespace {

std::vector<std::byte> bytes_of(kernels::ConstTensorView view) {
  std::vector<std::byte> bytes(
      static_cast<std::size_t>(storage(Count(view.elements()), view.dtype).value()));
  std::memcpy(bytes.data(), view.data, bytes.size());
  return bytes;
}

SavedBytes saved(const std::string& name, kernels::ConstTensorView view,
                 const kernels::Extents& shape) {
  return {{name, view.dtype, shape}, bytes_of(view)};
}
SavedBytes table(const std::string& name, std::span<const float> values) {
  return saved(name, {values.data(), DType::fp32, {std::ssize(values)}}, {std::ssize(values)});
}

// As QuantState.as_dict and Python's json write it.
SavedBytes state_text(const std::string& name, const kernels::PackedWeight& weight,
                      const kernels::Extents& shape, DType dtype) {
  std::string text =
      fmt::format(R"({{"quant_type": "nf4", "blocksize": {}, "dtype": "{}", "shape": [{}, {}])",
                  weight.block, torch_name(dtype), shape[0], shape[1]);
  if (weight.offset) {
    float offset = 0;
    std::memcpy(&offset, weight.offset.data, sizeof offset);
    text +=
        fmt::format(R"(, "nested_blocksize": {}, "nested_dtype": "float32", "nested_offset": {})",
                    kernels::kScaleBlock, nlohmann::json(static_cast<double>(offset)).dump());
  }
  text += '}';
  return saved(name, {text.data(), DType::uint8, {std::ssize(text)}}, {std::ssize(text)});
}

// transformers 5.17, BitsAndBytesConfig.to_dict (utils/quantization_config.py); what is not said
// has its default there.
nlohmann::ordered_json quantization_config(const models::PackedStorage& storage, DType compute) {
  if (storage.bits == 8)
    return {{"load_in_4bit", false}, {"load_in_8bit", true}, {"quant_method", "bitsandbytes"}};
  return {{"bnb_4bit_compute_dtype", torch_name(compute)},
          {"bnb_4bit_quant_storage", "uint8"},
          {"bnb_4bit_quant_type", storage.type},
          {"bnb_4bit_use_double_quant", storage.doubly_quantized()},
          {"load_in_4bit", true},
          {"load_in_8bit", false},
          {"quant_method", "bitsandbytes"}};
}

}  // namespace

std::string config_packed_as(const std::string& config, const models::PackedStorage* storage,
                             DType compute) {
  auto document = nlohmann::ordered_json::parse(config);
  document.erase("quantization_config");
  if (storage != nullptr) document["quantization_config"] = quantization_config(*storage, compute);
  return document.dump(2) + "\n";
}

std::vector<SavedBytes> bitsandbytes_tensors(const std::string& name,
                                             const kernels::PackedWeight& weight,
                                             const kernels::Extents& shape, DType dtype) {
  const std::int64_t scales = weight.scales.elements();
  if (weight.codes.dtype == DType::int8) {
    const std::string module = name.substr(0, name.rfind('.'));
    const std::uint8_t by_rows = 0;
    return {saved(name, weight.codes, shape), saved(module + ".SCB", weight.scales, {scales}),
            saved(module + ".weight_format", {&by_rows, DType::uint8, {1}}, kernels::Extents())};
  }
  std::vector<SavedBytes> all{
      saved(name, weight.codes, {weight.codes.elements(), 1}),
      saved(name + ".absmax", weight.scales, {scales}), table(name + ".quant_map", kernels::kNf4),
      state_text(name + ".quant_state.bitsandbytes__nf4", weight, shape, dtype)};
  if (!weight.scale_scales) return all;
  all.push_back(
      saved(name + ".nested_absmax", weight.scale_scales, {weight.scale_scales.elements()}));
  all.push_back(table(name + ".nested_quant_map", kernels::kSignedMap.value));
  return all;
}

}  // namespace plimsoll::runtime::io
