// Casts to 8 bits with one scale for the tensor, as the matrix lies and turned.
//
// Thread mapping: the largest magnitude: eight consecutive elements a thread, then those a grid
// further on, four of these at once; a value for each block, then one block over these. The cast: a
// block for each tile of 128 rows by 128 columns, of which a thread takes four rows of eight
// columns at once; the transpose goes through shared memory in words of four rows. Memory: x is
// read twice, once for its largest value and once to be cast; each result is a byte an element, in
// pieces of 128 bytes of a row. Numerics: a maximum has no order; the scale is divided in fp64, the
// product rounded in fp32 and once more to 8 bits: the host's bits.
#include "kernels/cuda/elementwise.h"
#include "kernels/device/reduce.cuh"

namespace plimsoll::kernels::cuda {

namespace {

using device::kVector;

constexpr int kRows = 128, kColumns = 128;  // of a tile
constexpr int kAcross = 16;  // bytes of a column that a thread writes at once
constexpr int kQuad = 4;  // rows whose codes of one column are a word
// A warp has 4 times 8 columns and 8 quads: with a word more to a column, all in different banks.
struct Turned {
  std::uint32_t quad[kColumns][kRows / kQuad + 1];
};

__global__ void __launch_bounds__(kThreads)
    largest_of_blocks(Span x, std::int64_t elements, bool vectors, float* largest) {
  __shared__ float shared[device::kMostWarps];
  constexpr int kAtOnce = 4;
  float most = 0;
  const auto look_at = [&](const float* v) {
#pragma unroll
    for (int e = 0; e < kVector; ++e) most = fmaxf(most, fabsf(v[e]));
  };
  std::int64_t i = device::grid_thread() * kVector;
  const std::int64_t step = device::grid_threads() * kVector;
  for (; vectors && i + (kAtOnce - 1) * step + kVector <= elements; i += kAtOnce * step) {
    device::Raw raw[kAtOnce];
#pragma unroll
    for (int k = 0; k < kAtOnce; ++k) raw[k] = device::fetch(x, i + k * step);
#pragma unroll
    for (int k = 0; k < kAtOnce; ++k) {
      float v[kVector];
      device::widen(x, raw[k], v);
      look_at(v);
    }
  }
  for (; i < elements; i += step) {
    const std::int64_t left = elements - i;
    float v[kVector];
    device::load_some(x, i, left < kVector ? static_cast<int>(left) : kVector, vectors, v);
    look_at(v);
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
  bool vectors, halves;  // of x: eight elements at once; and of 16 bits
  bool words;  // of values: eight bytes at once
  bool turned_vectors;  // of transposed: sixteen
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

// Of four rows the codes of eight columns, as words of four rows, one for each column.
__device__ __forceinline__ void turn(const uint2 (&row)[kQuad], std::uint32_t* column) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const auto word = [&](int r) { return half == 0 ? row[r].x : row[r].y; };
    // Bytes of rows 0 and 1, and of 2 and 3, side by side; then two and two.
    const std::uint32_t low01 = __byte_perm(word(0), word(1), 0x5140),
                        high01 = __byte_perm(word(0), word(1), 0x7362),
                        low23 = __byte_perm(word(2), word(3), 0x5140),
                        high23 = __byte_perm(word(2), word(3), 0x7362);
    column[4 * half + 0] = __byte_perm(low01, low23, 0x5410);
    column[4 * half + 1] = __byte_perm(low01, low23, 0x7632);
    column[4 * half + 2] = __byte_perm(high01, high23, 0x5410);
    column[4 * half + 3] = __byte_perm(high01, high23, 0x7632);
  }
}

// Four rows of eight columns of a tile that begins at `row0` and `column0`.
template <class T>
__device__ __forceinline__ void cast_patch(const CastTask& t, std::int64_t row0,
                                           std::int64_t column0, int quad, int c, float factor,
                                           Turned& turned) {
  const std::int64_t row = row0 + quad * kQuad, column = column0 + c;
  if (row >= t.rows || column >= t.columns) return;
  const int n = some_of(t.columns - column);
  const auto there = [&](int r) { return row + r < t.rows; };
  const auto at = [&](int r) { return (row + r) * t.columns + column; };
  uint2 codes[kQuad] = {};
  if (t.halves && n == kVector) {
    uint4 bits[kQuad] = {};
#pragma unroll
    for (int r = 0; r < kQuad; ++r)
      if (there(r)) bits[r] = device::fetch_halves(t.x, at(r));
#pragma unroll
    for (int r = 0; r < kQuad; ++r) {
      float v[kVector];
      device::widen_halves(t.x, bits[r], v);
      codes[r] = cast_some<T>(v, factor);
    }
  } else {
#pragma unroll
    for (int r = 0; r < kQuad; ++r) {
      if (!there(r)) continue;
      float v[kVector];
      device::load_some(t.x, at(r), n, t.vectors, v);
      codes[r] = cast_some<T>(v, factor);
    }
  }
  if (t.values != nullptr) {
#pragma unroll
    for (int r = 0; r < kQuad; ++r)
      if (there(r)) store_codes(t.values + at(r), codes[r], n, t.words);
  }
  if (t.transposed == nullptr) return;
  std::uint32_t columns[kVector];
  turn(codes, columns);
#pragma unroll
  for (int e = 0; e < kVector; ++e) turned.quad[c + e][quad] = columns[e];
}

// A column of the tile, sixteen rows of it.
__device__ __forceinline__ void store_turned(const CastTask& t, std::int64_t row0,
                                             std::int64_t column0, int of, int first,
                                             const Turned& turned) {
  const std::int64_t to = column0 + of, from = row0 + first;
  if (to >= t.columns || from >= t.rows) return;
  const std::uint32_t* const quads = turned.quad[of] + first / kQuad;
  std::uint32_t word[kAcross / kQuad] = {};
#pragma unroll
  for (int q = 0; q < kAcross / kQuad; ++q)
    if (from + q * kQuad < t.rows) word[q] = quads[q];
  std::uint8_t* const out = t.transposed + to * t.rows + from;
  if (t.turned_vectors) {
    *reinterpret_cast<uint4*>(out) = {word[0], word[1], word[2], word[3]};
    return;
  }
#pragma unroll
  for (int r = 0; r < kAcross; ++r)
    if (from + r < t.rows)
      out[r] = static_cast<std::uint8_t>(word[r / kQuad] >> 8 * (r % kQuad) & 0xffu);
}

template <class T>
__global__ void __launch_bounds__(kThreads) cast_tile(CastTask t) {
  Turned& turned = *device::dynamic_shared<Turned>();
  const std::int64_t across = ceil_divide(t.columns, kColumns);
  const std::int64_t row0 = blockIdx.x / across * kRows, column0 = blockIdx.x % across * kColumns;
  const float factor = t.scale[1];
  // A warp: 4 groups of eight columns, 8 quads. Four warps side by side, two below one another.
  constexpr int kQuads = 16;  // of the block at once
  const int thread = static_cast<int>(threadIdx.x), lane = thread % device::kWarp;
  const int warp = thread / device::kWarp;
  const int c = (warp % 4 * 4 + lane % 4) * kVector;
#pragma unroll 1
  for (int quad = warp / 4 * 8 + lane / 4; quad < kRows / kQuad; quad += kQuads)
    cast_patch<T>(t, row0, column0, quad, c, factor, turned);
  if (t.transposed == nullptr) return;
  __syncthreads();
#pragma unroll
  for (int i = thread; i < kColumns * kRows / kAcross; i += kThreads)
    store_turned(t, row0, column0, i / (kRows / kAcross), i % (kRows / kAcross) * kAcross, turned);
}

// All rows of `width` bytes begin at multiples of so many.
bool rows_begin_at(std::int64_t bytes, const TensorView& view, std::int64_t width) {
  return width % bytes == 0 && reinterpret_cast<std::uintptr_t>(view.data) % bytes == 0;
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
                   .halves = aligned_rows({x}, columns) && x.dtype != DType::fp32,
                   .words = rows_begin_at(kVector, values, columns),
                   .turned_vectors = rows_begin_at(kAcross, transposed, rows)};
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
