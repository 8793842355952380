// The GEMM that is written out, for what cuBLASLt does not take (mixed storage) and
// for machines without it; with the linear ops' entries, which call either.
//
// Thread mapping: 256 threads for each 64 × 64 tile of the result
// (kernels/device/tile_gemm.cuh). Memory: each operand is read once for each 64 rows (columns)
// of the result. Numerics: fp32 products added in the order of k, scale and what is there added
// once, rounded once. 10 to 20 TFLOP/s at best: no tensor cores.
#include "kernels/cuda/gemms.h"
#include "kernels/cuda/operands.h"
#include "kernels/device/tile_gemm.cuh"

namespace plimsoll::kernels::cuda {

namespace {

struct Stored {
  Span span;
  std::int64_t row, column;  // elements from one row (column) to the next, as the GEMM sees them
  std::int64_t first = 0;
  __device__ float at(std::int64_t i, std::int64_t j) const {
    return device::load_one(span, first + i * row + j * column);
  }
};

// Of 8 bits.
struct StoredBytes {
  const std::uint8_t* data;
  std::int64_t row, column;
  bool wide_exponent;  // e5m2, else e4m3
  __device__ float at(std::int64_t i, std::int64_t j) const {
    const std::uint8_t code = data[i * row + j * column];
    return wide_exponent ? widened(E5m2{code}) : widened(E4m3{code});
  }
};

template <class Operand>
struct Task {
  std::int64_t m, n, k;
  Operand a, b;
  Span bias;
  Stored c;
  float scale;
  bool accumulate;
  const float *a_scale, *b_scale;  // null: none

  __device__ float factor() const {
    return a_scale == nullptr ? scale : scale * (*a_scale * *b_scale);
  }
};

template <class Operand>
__global__ void __launch_bounds__(device::kTileThreads) multiply_tile(Task<Operand> t) {
  auto& shared = *device::dynamic_shared<device::TileShared>();
  const std::int64_t tiles = ceil_divide(t.n, device::kTile);
  const std::int64_t row = blockIdx.x / tiles * device::kTile;
  const std::int64_t column = blockIdx.x % tiles * device::kTile;
  float sum[device::kMine][device::kMine] = {};
  device::add_tile_gemm(
      [&](int i, std::int64_t l) { return row + i < t.m ? t.a.at(row + i, l) : 0.0f; },
      [&](std::int64_t l, int j) { return column + j < t.n ? t.b.at(l, column + j) : 0.0f; }, 0,
      t.k, t.a.column == 1, t.b.row == 1, shared, sum);
  const float scale = t.factor();
  device::for_tile(row, t.m, column, t.n, sum, [&](std::int64_t i, std::int64_t j, float value) {
    float from = t.bias.data ? device::load_one(t.bias, j) : 0.0f;
    if (t.accumulate) from += t.c.at(i, j);
    device::store_one(t.c.span, t.c.first + i * t.c.row + j, fmaf(scale, value, from));
  });
}

Stored stored(const ConstColumns& x, bool transposed) {
  const std::int64_t stride = x.stride();
  return {span_of(x.tensor), transposed ? 1 : stride, transposed ? stride : 1, x.first};
}
StoredBytes stored_bytes(const ConstColumns& x, bool transposed) {
  const std::int64_t stride = x.stride();
  return {static_cast<const std::uint8_t*>(x.tensor.data) + x.first, transposed ? 1 : stride,
          transposed ? stride : 1, x.tensor.dtype == DType::fp8_e5m2};
}

void multiply(const Gemm& p, const Columns& c, const TensorView& workspace) {
  using host::fits;
  expect(fits(p.a.view, p.a.transposed, p.m, p.k) && fits(p.b.view, p.b.transposed, p.k, p.n) &&
             fits(c, false, p.m, p.n),
         "linear", "the shapes of operands and result match");
  expect(!p.bias || p.bias.elements() == p.n, "linear", "the bias has one value for each column");
  if (p.m == 0 || p.n == 0) return;
  Gemms* library = current_launch().gemms;
  if (library == nullptr || !library->multiply(p, c, workspace)) plain_gemm(p, c);
}

void linear_forward(ConstTensorView x, ConstTensorView weight, ConstTensorView bias,
                    const LinearOptions& options, Columns y, TensorView workspace) {
  multiply({.m = x.shape[0],
            .n = weight.shape[options.transposed ? 1 : 0],
            .k = x.shape[1],
            .a = {x},
            .b = {weight, !options.transposed},
            .bias = bias,
            .scale = options.scale,
            .accumulate = options.accumulate},
           y, workspace);
}

void linear_backward_input(ConstColumns d_y, ConstTensorView weight, const LinearOptions& options,
                           TensorView d_x, TensorView workspace) {
  multiply({.m = d_y.rows(),
            .n = d_x.shape[1],
            .k = weight.shape[options.transposed ? 1 : 0],
            .a = {d_y},
            .b = {weight, options.transposed},
            .bias = {},
            .scale = options.scale,
            .accumulate = options.accumulate},
           d_x, workspace);
}

void linear_backward_weight(ConstColumns d_y, ConstTensorView x, const LinearOptions& options,
                            TensorView d_weight, TensorView workspace) {
  const ConstColumns left = options.transposed ? ConstColumns(x) : d_y;
  const ConstColumns right = options.transposed ? d_y : ConstColumns(x);
  multiply({.m = d_weight.shape[0],
            .n = d_weight.shape[1],
            .k = left.rows(),
            .a = {left, true},
            .b = {right},
            .bias = {},
            .scale = options.scale,
            .accumulate = options.accumulate},
           d_weight, workspace);
}

void float8_gemm(const Float8Matrix& a, const Float8Matrix& b, ConstTensorView bias,
                 const Float8Options& options, TensorView y, TensorView workspace) {
  host::expect_product(a, b, bias, y);
  multiply({.m = y.shape[0],
            .n = y.shape[1],
            .k = a.values.shape[1],
            .a = {a.values},
            .b = {b.values, true},
            .bias = bias,
            .accumulate = options.accumulate,
            .a_scale = a.scale,
            .b_scale = b.scale,
            .fast_sums = options.fast_sums},
           y, workspace);
}

template <class Operand>
void start_tiles(const Gemm& p, const Columns& c, const Operand& a, const Operand& b) {
  const Task<Operand> t{.m = p.m,
                        .n = p.n,
                        .k = p.k,
                        .a = a,
                        .b = b,
                        .bias = span_of(p.bias),
                        .c = stored(c, false),
                        .scale = p.scale,
                        .accumulate = p.accumulate,
                        .a_scale = p.scaled() ? fp32_of(p.a_scale) : nullptr,
                        .b_scale = p.scaled() ? fp32_of(p.b_scale) : nullptr};
  start("linear", multiply_tile<Operand>,
        block_each(ceil_divide(p.m, device::kTile) * ceil_divide(p.n, device::kTile),
                   device::kTileThreads, sizeof(device::TileShared)),
        t);
}
}  // namespace

void plain_gemm(const Gemm& p, Columns c) {
  const Matrix &a = p.a, &b = p.b;
  if (p.scaled())
    start_tiles(p, c, stored_bytes(a.view, a.transposed), stored_bytes(b.view, b.transposed));
  else
    start_tiles(p, c, stored(a.view, a.transposed), stored(b.view, b.transposed));
}

void add_linear(KernelTable& table) {
  table.float8_gemm = float8_gemm;
  table.linear_forward = linear_forward;
  table.linear_backward_input = linear_backward_input;
  table.linear_backward_weight = linear_backward_weight;
}

}  // namespace plimsoll::kernels::cuda
