// Element types and the only conversion from elements to bytes.
#pragma once

#include <optional>
#include <string_view>

#include "models/base/quantity.h"

namespace plimsoll {

enum class DType : std::uint8_t {
  fp64,
  fp32,
  bf16,
  fp16,
  fp8_e4m3,
  fp8_e5m2,
  int64,
  int32,
  int8,
  uint8,
  boolean,
  nf4,
  fp4,
  int4,
};

constexpr std::int64_t bits(DType dtype) {
  switch (dtype) {
    case DType::fp64:
    case DType::int64:
      return 64;
    case DType::fp32:
    case DType::int32:
      return 32;
    case DType::bf16:
    case DType::fp16:
      return 16;
    case DType::fp8_e4m3:
    case DType::fp8_e5m2:
    case DType::int8:
    case DType::uint8:
    case DType::boolean:
      return 8;
    case DType::nf4:
    case DType::fp4:
    case DType::int4:
      return 4;
  }
  return 0;
}

std::string_view name_of(DType dtype);

// The names of torch ("bfloat16", "torch.float16", "float") and ours ("bf16"); nothing for others.
std::optional<DType> dtype_from(std::string_view name);

// Bytes of `elements` packed values; a last partial byte counts whole.
inline Bytes storage(Count elements, DType dtype) {
  const std::int64_t b = bits(dtype);
  if (b >= 8) return Bytes(checked_multiply(elements.value(), b / 8));
  return Bytes(ceil_divide(elements.value(), 8 / b));
}

}  // namespace plimsoll
