// What PyTorch calls a floating-point type.
#pragma once

#include <string_view>

#include "models/base/dtype.h"

namespace plimsoll {

// "bfloat16", "float16"; of any other type "float32".
constexpr std::string_view torch_name(DType dtype) {
  return dtype == DType::bf16 ? "bfloat16" : dtype == DType::fp16 ? "float16" : "float32";
}

}  // namespace plimsoll
