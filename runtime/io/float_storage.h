// Elements of one floating-point type as elements of another.
#pragma once

#include <optional>
#include <string_view>

#include "kernels/tensor_view.h"

namespace plimsoll::runtime::io {

// "F32", "BF16", "F16"; nothing for other types of safetensors.
std::optional<DType> stored_dtype(std::string_view name);
std::string_view stored_name(DType dtype);  // Error{internal}: none of the three

// into[i] = from[i], rounded to nearest even; equal types are copied. Any address, fp32, bf16 or
// fp16, as many elements each.
void convert(kernels::ConstTensorView from, kernels::TensorView into);

// `count` elements of a view, from `first` on, as one row.
template <class Data>
kernels::BasicView<Data> piece(const kernels::BasicView<Data>& view, std::int64_t first,
                               std::int64_t count) {
  return view.as({view.elements()}).rows(first, count);
}

}  // namespace plimsoll::runtime::io
