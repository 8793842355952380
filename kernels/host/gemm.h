// The one GEMM of fp32 matrices that all linear ops are made of. Which library multiplies is
// chosen by file: gemm_openblas.cpp or gemm_plain.cpp.
#pragma once

#include <cstdint>

namespace plimsoll::kernels::host {

// A row-major matrix of which the GEMM takes the transpose where asked; `stride` elements from
// row to row as stored.
struct Operand {
  const float* data = nullptr;
  std::int64_t stride = 0;
  bool transposed = false;
};

// c[i, j] = alpha · sum over k of a[i, k] · b[k, j] + beta · c[i, j]; beta 0 does not read c.
void gemm(std::int64_t m, std::int64_t n, std::int64_t k, float alpha, const Operand& a,
          const Operand& b, float beta, float* c, std::int64_t c_stride);

}  // namespace plimsoll::kernels::host
