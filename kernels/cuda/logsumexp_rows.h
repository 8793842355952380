// Log-sum-exp as cuDNN's backward takes it.
#pragma once

#include <cstdint>

namespace plimsoll::kernels::cuda {

// packed[b, h, i] = logsumexp[(b · length + i) · stride + h], on the thread's stream.
void start_packing(const float* logsumexp, std::int64_t stride, std::int64_t sequences,
                   std::int64_t heads, std::int64_t length, float* packed);

}  // namespace plimsoll::kernels::cuda
