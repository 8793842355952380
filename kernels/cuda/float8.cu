// Casts to 8 bits with one scale for the tensor, as the matrix lies and turned.
//
// Thread mapping: the largest magnitude: eight consecutive elements a thread, then those a grid
// further on, a value for each block, then one block over these. The cast: a block for each tile of
// 128 rows by 64 columns, eight threads of eight elements to a row; the transpose goes through
// shared memory, eight rows a thread. Memory: x is read twice, once for its largest value and once
// to be cast; each result is a byte an element, in pieces of 64 bytes of a row, of the transpose
// 128. Numerics: a maximum has no order; the scale is divided in fp64, the product rounded in fp32
// and once more to 8 bits: the host's bits.
#include "kernels/cuda/elementwise.h"
#include "kernels/device/reduce.cuh"

namespace plimsoll::kernels::cuda {

namespace {

using device::kVector;

constexpr int kRows = 128, kColumns = 64;  // of a tile
// Four bytes more in shared memory, so that columns begin in different banks.
struct Turned {
  std::uint8_t code[kColumns][kRows + 4];
};

__global__ void __launch_bounds__(kThreads)
    largest_of_blocks(Span x, std::int64_t elements, bool vectors, float* largest) {
  __shared__ float shared[device::kMostWarps];
  float most = 0;
  for (std::int64_t i = device::grid_thread() * kVector; i < elements;
       i += device::grid_threads() * kVector) {
    const std::int64_t left = elements - i;
    const int n = left < kVector ? static_cast<int>(left) : kVector;
    float v[kVector];
    device::load_some(x, i, n, vectors, v);
#pragma unroll
    for (int e = 0; e < kVector; ++e) most = fmaxf(most, fabsf(v[e]));
  }
  most = device::over_row(most, shared, device::Larger{});
  if (threadIdx.x == 0) largest[blockIdx.x] = most;
}

__global__ void __launch_bounds__(kThreads)
    scale_of_largest(const float* largest, int blocks, float limit, float* scale) {
  __shared__ float shared[device::kMostWarps];
  float most = 0;
  for (int i = static_cast<int>(threadIdx.x); i < blocks; i += kThreads)
    most = fmaxf(most, largest[i]);
  most = device::over_row(most, shared, device::Larger{});
  if (threadIdx.x != 0) return;
  const double counts = static_cast<double>(most) < 1e-12 ? 1e-12 : static_cast<double>(most);
  const auto factor = static_cast<float>(static_cast<double>(limit) / counts);
  scale[0] = 1 / factor;
  scale[1] = factor;
}

void float8_scale(ConstTensorView x, DType to, TensorView scale, TensorView partial) {
  host::expect_float8(to, "float8_scale");
  expect(scale.elements() == 2 && partial.elements() >= 1, "float8_scale",
         "a scale is two values, and there is scratch");
  const std::int64_t elements = x.elements();
  Grid grid = strided_grid(ceil_divide(elements, kVector));
  if (grid.blocks.x > partial.elements()) grid.blocks.x = static_cast<unsigned>(partial.elements());
  float* const largest = fp32_of(partial);
  start("float8_scale", largest_of_blocks, grid, span_of(x), elements, aligned({x}), largest);
  start("float8_scale", scale_of_largest, block_each(1, kThreads), largest,
        static_cast<int>(grid.blocks.x), to == DType::fp8_e4m3 ? kLargestE4m3 : kLargestE5m2,
        fp32_of(scale));
}

struct CastTask {
  Span x;
  std::int64_t rows, columns;
  const float* scale;
  std::uint8_t *values, *transposed;  // null: not wanted
  bool vectors;  // of x
  bool words, turned_words;  // eight bytes at once of either result
};

// Eight codes from four times two.
template <class T>
__device__ __forceinline__ uint2 cast_some(const float* v, float factor) {
  uint2 made;
  const std::uint32_t a = device::packed_bytes<T>(v[0] * factor, v[1] * factor),
                      b = device::packed_bytes<T>(v[2] * factor, v[3] * factor),
                      c = device::packed_bytes<T>(v[4] * factor, v[5] * factor),
                      d = device::packed_bytes<T>(v[6] * factor, v[7] * factor);
  made.x = a | b << 16;
  made.y = c | d << 16;
  return made;
}

__device__ __forceinline__ std::uint8_t byte_of(const uint2& codes, int e) {
  return static_cast<std::uint8_t>((e < 4 ? codes.x >> 8 * e : codes.y >> 8 * (e - 4)) & 0xffu);
}

__device__ __forceinline__ void store_codes(std::uint8_t* to, const uint2& codes, int n,
                                            bool words) {
  if (words && n == kVector) {
    *reinterpret_cast<uint2*>(to) = codes;
    return;
  }
#pragma unroll
  for (int e = 0; e < kVector; ++e)
    if (e < n) to[e] = byte_of(codes, e);
}

__device__ __forceinline__ int some_of(std::int64_t left) {
  return left < kVector ? static_cast<int>(left) : kVector;
}

template <class T>
__global__ void __launch_bounds__(kThreads) cast_tile(CastTask t) {
  Turned& turned = *device::dynamic_shared<Turned>();
  constexpr int kAcross = kColumns / kVector, kDown = kRows / kVector;
  const std::int64_t across = ceil_divide(t.columns, kColumns);
  const std::int64_t row0 = blockIdx.x / across * kRows, column0 = blockIdx.x % across * kColumns;
  const float factor = t.scale[1];
  const int c = static_cast<int>(threadIdx.x) % kAcross * kVector;
  const std::int64_t column = column0 + c;
#pragma unroll
  for (int r = static_cast<int>(threadIdx.x) / kAcross; r < kRows; r += kThreads / kAcross) {
    const std::int64_t row = row0 + r;
    if (row >= t.rows || column >= t.columns) continue;
    const int n = some_of(t.columns - column);
    const std::int64_t at = row * t.columns + column;
    float v[kVector];
    device::load_some(t.x, at, n, t.vectors, v);
    const uint2 codes = cast_some<T>(v, factor);
    if (t.values != nullptr) store_codes(t.values + at, codes, n, t.words);
    if (t.transposed != nullptr) {
#pragma unroll
      for (int e = 0; e < kVector; ++e) turned.code[c + e][r] = byte_of(codes, e);
    }
  }
  if (t.transposed == nullptr) return;
  __syncthreads();
#pragma unroll
  for (int i = static_cast<int>(threadIdx.x); i < kColumns * kDown; i += kThreads) {
    const int of = i / kDown, first = i % kDown * kVector;
    const std::int64_t to = column0 + of, from = row0 + first;
    if (to >= t.columns || from >= t.rows) continue;
    const int n = some_of(t.rows - from);
    std::uint32_t words[2] = {0, 0};
#pragma unroll
    for (int e = 0; e < kVector; ++e)
      if (e < n)
        words[e / 4] |= static_cast<std::uint32_t>(turned.code[of][first + e]) << 8 * (e % 4);
    uint2 codes;
    codes.x = words[0];
    codes.y = words[1];
    store_codes(t.transposed + to * t.rows + from, codes, n, t.turned_words);
  }
}

bool at_8_bytes(const TensorView& view, std::int64_t width) {
  return width % kVector == 0 && reinterpret_cast<std::uintptr_t>(view.data) % 8 == 0;
}

void to_float8(ConstTensorView x, ConstTensorView scale, TensorView values, TensorView transposed) {
  host::expect_cast(x, scale, values, transposed);
  if (!values && !transposed) return;
  const std::int64_t rows = x.shape[0], columns = x.shape[1];
  const CastTask t{.x = span_of(x),
                   .rows = rows,
                   .columns = columns,
                   .scale = fp32_of(scale),
                   .values = static_cast<std::uint8_t*>(values.data),
                   .transposed = static_cast<std::uint8_t*>(transposed.data),
                   .vectors = aligned_rows({x}, columns),
                   .words = at_8_bytes(values, columns),
                   .turned_words = at_8_bytes(transposed, rows)};
  const Grid grid = block_each(ceil_divide(rows, kRows) * ceil_divide(columns, kColumns), kThreads,
                               transposed ? sizeof(Turned) : 0);
  const DType to = values ? values.dtype : transposed.dtype;
  start("to_float8", to == DType::fp8_e4m3 ? cast_tile<E4m3> : cast_tile<E5m2>, grid, t);
}

}  // namespace

void add_float8(KernelTable& table) {
  table.float8_scale = float8_scale;
  table.to_float8 = to_float8;
}

}  // namespace plimsoll::kernels::cuda
