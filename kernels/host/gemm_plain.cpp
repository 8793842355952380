#include "kernels/host/gemm.h"

namespace plimsoll::kernels::host {

void gemm(std::int64_t m, std::int64_t n, std::int64_t k, float alpha, const Operand& a,
          const Operand& b, float beta, float* c, std::int64_t c_stride) {
  const auto at = [](const Operand& x, std::int64_t row, std::int64_t column) {
    return x.data[x.transposed ? column * x.stride + row : row * x.stride + column];
  };
  constexpr std::int64_t kColumns = 64;
  for (std::int64_t i = 0; i < m; ++i)
    for (std::int64_t j0 = 0; j0 < n; j0 += kColumns) {
      const std::int64_t columns = n - j0 < kColumns ? n - j0 : kColumns;
      float sum[kColumns] = {};
      for (std::int64_t p = 0; p < k; ++p) {
        const float left = at(a, i, p);
        for (std::int64_t j = 0; j < columns; ++j) sum[j] += left * at(b, p, j0 + j);
      }
      float* row = c + i * c_stride + j0;
      for (std::int64_t j = 0; j < columns; ++j)
        row[j] = beta == 0 ? alpha * sum[j] : alpha * sum[j] + beta * row[j];
    }
}

}  // namespace plimsoll::kernels::host
