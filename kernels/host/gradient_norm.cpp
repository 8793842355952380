#include "kernels/host/blocks.h"

namespace plimsoll::kernels::host {

namespace {

void add_squares(const SquaredPiece& p, std::int64_t chunk) {
  const std::int64_t n = p.piece.elements();
  expect(chunk > 0 && p.first >= 0 && p.sums.elements() >= ceil_divide(p.first + n, chunk),
         "sum_of_squares", "there is a sum for each chunk");
  double* sum = fp64_of(p.sums);
  in_blocks(n, [&](std::int64_t at, std::int64_t count) {
    float v[kBlock];
    read(p.piece, at, count, v);
    for (std::int64_t i = 0; i < count; ++i)
      sum[(p.first + at + i) / chunk] += static_cast<double>(v[i]) * static_cast<double>(v[i]);
  });
}

void sum_of_squares(std::span<const SquaredPiece> pieces, std::int64_t chunk) {
  for (const SquaredPiece& p : pieces) add_squares(p, chunk);
}

void total(ConstTensorView sums, std::span<const std::int64_t> ends, TensorView totals) {
  expect(sums.dtype == DType::fp64 && totals.elements() == static_cast<std::int64_t>(ends.size()),
         "total", "sums are fp64, and there is a total for each end");
  const auto* sum = static_cast<const double*>(sums.data);
  double* to = fp64_of(totals);
  std::int64_t i = 0;
  for (const std::int64_t end : ends) {
    expect(i <= end && end <= sums.elements(), "total", "ends ascend to the number of sums");
    double all = 0;
    for (; i < end; ++i) all += sum[i];
    *to++ = all;
  }
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
