#include "models/base/dtype.h"

#include <array>
#include <utility>

namespace plimsoll {

namespace {
constexpr std::array<std::pair<DType, std::string_view>, 14> kNames{{
    {DType::fp64, "fp64"},
    {DType::fp32, "fp32"},
    {DType::bf16, "bf16"},
    {DType::fp16, "fp16"},
    {DType::fp8_e4m3, "fp8_e4m3"},
    {DType::fp8_e5m2, "fp8_e5m2"},
    {DType::int64, "int64"},
    {DType::int32, "int32"},
    {DType::int8, "int8"},
    {DType::uint8, "uint8"},
    {DType::boolean, "bool"},
    {DType::nf4, "nf4"},
    {DType::fp4, "fp4"},
    {DType::int4, "int4"},
}};

// torch.dtype and safetensors spellings.
constexpr std::array<std::pair<DType, std::string_view>, 19> kAliases{{
    {DType::fp64, "float64"},
    {DType::fp64, "F64"},
    {DType::fp32, "float32"},
    {DType::fp32, "float"},
    {DType::fp32, "F32"},
    {DType::bf16, "bfloat16"},
    {DType::bf16, "BF16"},
    {DType::fp16, "float16"},
    {DType::fp16, "half"},
    {DType::fp16, "F16"},
    {DType::fp8_e4m3, "float8_e4m3fn"},
    {DType::fp8_e4m3, "F8_E4M3"},
    {DType::fp8_e5m2, "float8_e5m2"},
    {DType::fp8_e5m2, "F8_E5M2"},
    {DType::int64, "I64"},
    {DType::int32, "I32"},
    {DType::int8, "I8"},
    {DType::uint8, "U8"},
    {DType::boolean, "BOOL"},
}};
}  // namespace

std::string_view name_of(DType dtype) {
  for (const auto& [d, name] : kNames)
    if (d == dtype) return name;
  return "?";
}

std::optional<DType> dtype_from(std::string_view name) {
  if (name.starts_with("torch.")) name.remove_prefix(6);
  for (const auto& [d, n] : kNames)
    if (n == name) return d;
  for (const auto& [d, n] : kAliases)
    if (n == name) return d;
  return std::nullopt;
}

}  // namespace plimsoll
