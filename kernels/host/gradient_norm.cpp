#include "kernels/host/blocks.h"

namespace plimsoll::kernels::host {

namespace {

void sum_of_squares(ConstTensorView piece, std::int64_t first, std::int64_t chunk,
                    TensorView sums) {
  const std::int64_t n = piece.elements();
  expect(chunk > 0 && first >= 0 && sums.elements() >= ceil_divide(first + n, chunk),
         "sum_of_squares", "there is a sum for each chunk");
  double* sum = fp64_of(sums);
  in_blocks(n, [&](std::int64_t at, std::int64_t count) {
    float v[kBlock];
    read(piece, at, count, v);
    for (std::int64_t i = 0; i < count; ++i)
      sum[(first + at + i) / chunk] += static_cast<double>(v[i]) * static_cast<double>(v[i]);
  });
}

void total(ConstTensorView sums, TensorView total) {
  expect(sums.dtype == DType::fp64, "total", "sums are fp64");
  const auto* sum = static_cast<const double*>(sums.data);
  double all = 0;
  for (std::int64_t i = 0; i < sums.elements(); ++i) all += sum[i];
  *fp64_of(total) = all;
}

void clip(ConstTensorView squares, float max_norm, float loss_scale, TensorView norm,
          TensorView factor, TensorView overflow) {
  expect(squares.dtype == DType::fp64 && loss_scale > 0, "clip",
         "squares are fp64, the loss scale is above 0");
  const double sum = *static_cast<const double*>(squares.data);
  const double length = std::sqrt(sum) / loss_scale;
  const bool finite = std::isfinite(sum);
  const double shrink = max_norm > 0 ? std::min(1.0, max_norm / (length + 1e-6)) : 1.0;
  *fp32_of(norm) = static_cast<float>(length);
  *int32_of(overflow) = finite ? 0 : 1;
  *fp32_of(factor) = finite ? static_cast<float>(shrink / loss_scale) : 0.0f;
}

}  // namespace

void add_gradient_norm(KernelTable& table) {
  table.sum_of_squares = sum_of_squares;
  table.total = total;
  table.clip = clip;
}

}  // namespace plimsoll::kernels::host
