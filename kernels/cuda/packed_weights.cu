// Dequantization of weights in 4 and in 8 bits.
//
// 4 bits:
// Thread mapping: a thread takes eight consecutive elements, four bytes of codes in one block of
// scales, then those a grid further on; levels and the values of scales in 8 bits stand in shared
// memory.
// Memory: half a byte of codes and, of a result in 16 bits, two bytes written for each element;
// scales come from L1 for all but the first thread of a block of 64.
// 8 bits: eight elements likewise, eight bytes of codes read at once, which may lie in several
// blocks (a row of the matrix has any length).
// Numerics: fp32, a product (of scales in 8 bits another and a sum) rounded one by one, then once
// to nearest even; the host's bits.
#include <algorithm>

#include "kernels/cuda/elementwise.h"

namespace plimsoll::kernels::cuda {

namespace {

using device::kVector;

struct Levels {
  float level[16], scale[256];
};

struct Packed {
  const std::uint8_t* codes;
  const float* scales;  // null: in 8 bits
  const std::uint8_t* scale_codes;
  const float *scale_scales, *offset;
  Span to;
  std::int64_t elements;
  bool vectors;  // codes by words and results by vectors
};

__device__ __forceinline__ float scale_of(const Packed& p, const Levels& levels,
                                          std::int64_t block) {
  if (p.scales != nullptr) return p.scales[block];
  return levels.scale[p.scale_codes[block]] * p.scale_scales[block / kScaleBlock] + *p.offset;
}

// Codes of n <= 8 elements from i on, a multiple of 8: byte by byte, the first in the lowest bits.
__device__ __forceinline__ std::uint32_t codes_at(const Packed& p, std::int64_t i, int n) {
  const std::uint8_t* at = p.codes + i / 2;
  if (p.vectors && n == kVector) return *reinterpret_cast<const std::uint32_t*>(at);
  std::uint32_t word = 0;
#pragma unroll
  for (int b = 0; b < kVector / 2; ++b)
    if (2 * b < n) word |= static_cast<std::uint32_t>(at[b]) << (8 * b);
  return word;
}

__global__ void __launch_bounds__(kThreads) dequantize_some(Packed p, Levels given) {
  static_assert(kPackedBlock % kVector == 0);
  Levels& levels = *device::dynamic_shared<Levels>();
  for (int i = static_cast<int>(threadIdx.x); i < 256; i += static_cast<int>(blockDim.x)) {
    levels.scale[i] = given.scale[i];
    if (i < 16) levels.level[i] = given.level[i];
  }
  __syncthreads();
  for (std::int64_t i = device::grid_thread() * kVector; i < p.elements;
       i += device::grid_threads() * kVector) {
    const std::int64_t left = p.elements - i;
    const int n = left < kVector ? static_cast<int>(left) : kVector;
    const std::uint32_t word = codes_at(p, i, n);
    const float scale = scale_of(p, levels, i / kPackedBlock);
    float v[kVector];
#pragma unroll
    for (int e = 0; e < kVector; ++e)  // the high half of a byte first
      v[e] = levels.level[word >> (e / 2 * 8 + (e % 2 == 0 ? 4 : 0)) & 0xfu] * scale;
    device::store_some(p.to, i, n, p.vectors, v);
  }
}

struct PackedBytes {
  const std::uint8_t* codes;
  const float* scales;
  const std::uint8_t* zeros;  // null: codes are signed, and 127 is the scale
  Span to;
  std::int64_t elements, block;
  bool vectors;
};

__device__ __forceinline__ std::uint64_t bytes_at(const PackedBytes& p, std::int64_t i, int n) {
  const std::uint8_t* at = p.codes + i;
  if (p.vectors && n == kVector) return *reinterpret_cast<const std::uint64_t*>(at);
  std::uint64_t word = 0;
#pragma unroll
  for (int b = 0; b < kVector; ++b)
    if (b < n) word |= static_cast<std::uint64_t>(at[b]) << (8 * b);
  return word;
}

template <bool kAffine>
__global__ void __launch_bounds__(kThreads) dequantize_bytes(PackedBytes p) {
  for (std::int64_t i = device::grid_thread() * kVector; i < p.elements;
       i += device::grid_threads() * kVector) {
    const std::int64_t left = p.elements - i;
    const int n = left < kVector ? static_cast<int>(left) : kVector;
    const std::uint64_t word = bytes_at(p, i, n);
    std::int64_t block = i / p.block, within = i - block * p.block;
    float scale = p.scales[block];
    int zero = kAffine ? p.zeros[block] : 0;
    float v[kVector];
#pragma unroll
    for (int e = 0; e < kVector; ++e) {
      if (within == p.block && e < n) {
        within = 0;
        scale = p.scales[++block];
        if constexpr (kAffine) zero = p.zeros[block];
      }
      ++within;
      const auto code = static_cast<std::uint8_t>(word >> (8 * e));
      if constexpr (kAffine)
        v[e] = static_cast<float>(code - zero) * scale;
      else
        v[e] = static_cast<float>(static_cast<std::int8_t>(code)) * scale * (1.0f / kByteLevels);
    }
    device::store_some(p.to, i, n, p.vectors, v);
  }
}

bool at_multiple_of(std::uintptr_t bytes, const ConstTensorView& view) {
  return reinterpret_cast<std::uintptr_t>(view.data) % bytes == 0;
}

void dequantize_bytes_of(const PackedWeight& w, TensorView to) {
  const PackedBytes p{.codes = static_cast<const std::uint8_t*>(w.codes.data),
                      .scales = fp32_of(w.scales),
                      .zeros = static_cast<const std::uint8_t*>(w.zeros.data),
                      .to = span_of(to),
                      .elements = to.elements(),
                      .block = w.block,
                      .vectors = aligned({to}) && at_multiple_of(kVector, w.codes)};
  const Grid grid = strided_grid(ceil_divide(p.elements, kVector));
  start("dequantize", w.zeros ? dequantize_bytes<true> : dequantize_bytes<false>, grid, p);
}

void dequantize(const PackedWeight& w, TensorView to) {
  host::expect_packed(w, to, "dequantize");
  if (w.of_bytes()) return dequantize_bytes_of(w, to);
  const bool doubly = w.scales.dtype == DType::uint8;
  const Packed p{.codes = static_cast<const std::uint8_t*>(w.codes.data),
                 .scales = doubly ? nullptr : fp32_of(w.scales),
                 .scale_codes = doubly ? static_cast<const std::uint8_t*>(w.scales.data) : nullptr,
                 .scale_scales = doubly ? fp32_of(w.scale_scales) : nullptr,
                 .offset = doubly ? fp32_of(w.offset) : nullptr,
                 .to = span_of(to),
                 .elements = to.elements(),
                 .vectors = aligned({to}) && at_multiple_of(4, w.codes)};
  Levels levels{};
  std::ranges::copy(kNf4, levels.level);
  std::ranges::copy(kSignedMap.value, levels.scale);
  Grid grid = strided_grid(ceil_divide(p.elements, kVector));
  grid.shared_bytes = sizeof(Levels);
  start("dequantize", dequantize_some, grid, p, levels);
}

}  // namespace

void add_packed(KernelTable& table) {
  table.dequantize = dequantize;
}

}  // namespace plimsoll::kernels::cuda
