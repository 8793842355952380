// Casts to 8 bits; their GEMM is in linear.cpp.
#include "kernels/host/blocks.h"

namespace plimsoll::kernels::host {

void expect_float8(DType dtype, const char* op) {
  expect(dtype == DType::fp8_e4m3 || dtype == DType::fp8_e5m2, op, "8 bits are e4m3 or e5m2");
}

void expect_cast(const ConstTensorView& x, const ConstTensorView& scale, const TensorView& values,
                 const TensorView& transposed) {
  const char* const op = "to_float8";
  expect(x.shape.rank == 2, op, "x is a matrix");
  expect(scale.dtype == DType::fp32 && scale.elements() == 2, op, "a scale is two values of fp32");
  expect(!values || values.shape == x.shape, op, "the result has x's shape");
  expect(!transposed || transposed.shape == Extents{x.shape[1], x.shape[0]}, op,
         "the transpose has x's shape turned");
  for (const TensorView& made : {values, transposed})
    if (made) expect_float8(made.dtype, op);
  expect(!values || !transposed || values.dtype == transposed.dtype, op,
         "both results have one dtype");
}

namespace {

void float8_scale(ConstTensorView x, DType to, TensorView scale, TensorView partial) {
  expect_float8(to, "float8_scale");
  expect(scale.elements() == 2 && partial.elements() >= 1, "float8_scale",
         "a scale is two values, and there is scratch");
  float most = 0;
  in_blocks(x.elements(), [&](std::int64_t first, std::int64_t n) {
    float v[kBlock];
    read(x, first, n, v);
    for (std::int64_t i = 0; i < n; ++i) most = std::max(most, std::fabs(v[i]));
  });
  const float largest = to == DType::fp8_e4m3 ? kLargestE4m3 : kLargestE5m2;
  const auto factor = static_cast<float>(largest / std::max(static_cast<double>(most), 1e-12));
  fp32_of(scale)[0] = 1 / factor;
  fp32_of(scale)[1] = factor;
}

template <class T>
void cast(const ConstTensorView& x, float factor, const TensorView& values,
          const TensorView& transposed) {
  auto* const straight = static_cast<T*>(values.data);
  auto* const turned = static_cast<T*>(transposed.data);
  const std::int64_t rows = x.shape[0], columns = x.shape[1];
  for (std::int64_t r = 0; r < rows; ++r)
    in_blocks(columns, [&](std::int64_t first, std::int64_t n) {
      float v[kBlock];
      read(x, r * columns + first, n, v);
      for (std::int64_t i = 0; i < n; ++i) {
        const T made = narrowed<T>(v[i] * factor);
        if (straight != nullptr) straight[r * columns + first + i] = made;
        if (turned != nullptr) turned[(first + i) * rows + r] = made;
      }
    });
}

void to_float8(ConstTensorView x, ConstTensorView scale, TensorView values, TensorView transposed) {
  expect_cast(x, scale, values, transposed);
  if (!values && !transposed) return;
  const DType to = values ? values.dtype : transposed.dtype;
  const float factor = fp32_of(scale)[1];
  if (to == DType::fp8_e4m3)
    cast<E4m3>(x, factor, values, transposed);
  else
    cast<E5m2>(x, factor, values, transposed);
}

}  // namespace

void add_float8(KernelTable& table) {
  table.float8_scale = float8_scale;
  table.to_float8 = to_float8;
}

}  // namespace plimsoll::kernels::host
