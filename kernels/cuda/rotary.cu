// Rotary position embedding: its table, and the rotation in place.
//
// Thread mapping: the table, a thread for each (position, pair); the rotation, a thread for each
// eight pairs of a head of a token.
// Memory: 2 fp32 written for each (position, pair); the rotation reads and writes each element of x
// once, and finds the table in the L2 cache.
// Numerics: frequencies come from the host; cosines and sines are taken in fp64 and rounded. The
// rotation is fp32, rounded once: the host's bits.
#include <numbers>

#include "kernels/cuda/operands.h"
#include "kernels/device/elementwise.cuh"
#include "kernels/rotary_frequency.h"

namespace plimsoll::kernels::cuda {

namespace {

using device::kVector;

constexpr int kMostPairs = 256;  // head_dim <= 512

struct Frequencies {
  float of[kMostPairs];
};

struct Turn {
  double cosine, sine;
};
// Less n quarter turns, π / 2 in three parts (Cody, Waite, "Software manual for the elementary
// functions", 1980): exact to 2^-60 for the angles of 2^30 positions. What is left is at most an
// eighth of a turn, which sincospi takes without the local memory that cos and sin need for angles
// beyond 2^31.
__device__ Turn turn_of(double angle) {
  const double n = rint(angle * 0x1.45f306dc9c883p-1);  // 2 / π
  double left = fma(n, -0x1.921fb54442d18p+0, angle);
  left = fma(n, -0x1.1a62633145c07p-54, left);
  left = fma(n, 0x1.f1976b7ed8fbcp-110, left);
  double sine, cosine;
  sincospi(left * std::numbers::inv_pi, &sine, &cosine);
  const auto quarters = static_cast<std::int64_t>(n);
  const double across = quarters & 1 ? sine : cosine, up = quarters & 1 ? cosine : sine;
  return {(quarters + 1) & 2 ? -across : across, quarters & 2 ? -up : up};
}

__global__ void __launch_bounds__(kThreads)
    fill_table(Frequencies frequencies, float* cosines, float* sines, std::int64_t length,
               std::int64_t half) {
  for (std::int64_t at = device::grid_thread(); at < length * half; at += device::grid_threads()) {
    const std::int64_t t = at / half;
    const float turned = static_cast<float>(t) * frequencies.of[at % half];
    const Turn turn = turn_of(turned);
    cosines[at] = static_cast<float>(turn.cosine);
    sines[at] = static_cast<float>(turn.sine);
  }
}

struct Rotation {
  Span x, table;
  std::int64_t rows, stride, first, heads, step, length, half;
  bool backward, vectors;
};

__global__ void __launch_bounds__(kThreads) rotate(Rotation r) {
  const std::int64_t groups = ceil_divide(r.half, kVector);
  const std::int64_t all = r.rows * r.heads * groups;
  const std::int64_t sines = r.length * r.half;
  for (std::int64_t i = device::grid_thread(); i < all; i += device::grid_threads()) {
    const std::int64_t pair = i % groups * kVector, head = i / groups % r.heads;
    const std::int64_t row = i / groups / r.heads;
    const int some = r.half - pair < kVector ? static_cast<int>(r.half - pair) : kVector;
    const std::int64_t at = row * r.stride + r.first + head * r.step + pair;
    const std::int64_t turn = row % r.length * r.half + pair;
    float a[kVector], b[kVector], c[kVector], s[kVector];
    device::load_some(r.x, at, some, r.vectors, a);
    device::load_some(r.x, at + r.half, some, r.vectors, b);
    device::load_some(r.table, turn, some, r.vectors, c);
    device::load_some(r.table, sines + turn, some, r.vectors, s);
    for (int e = 0; e < kVector; ++e) {
      const float x = a[e], y = b[e], sine = r.backward ? -s[e] : s[e];
      a[e] = x * c[e] - y * sine;
      b[e] = y * c[e] + x * sine;
    }
    device::store_some(r.x, at, some, r.vectors, a);
    device::store_some(r.x, at + r.half, some, r.vectors, b);
  }
}

void rotary_table(const RotaryFrequencies& frequencies, TensorView table) {
  expect(table.shape.rank == 3 && table.shape[0] == 2, "rotary_table", "it is [2, length, d / 2]");
  const std::int64_t length = table.shape[1], half = table.shape[2];
  expect(half <= kMostPairs, "rotary_table", "d is at most 512");
  Frequencies f{};
  for (std::int64_t i = 0; i < half; ++i) f.of[i] = rotary_frequency(frequencies, i, half);
  float* cosines = fp32_of(table);
  start("rotary_table", fill_table, strided_grid(length * half), f, cosines,
        cosines + length * half, length, half);
}

void rotary(ConstTensorView table, bool backward, Columns x) {
  const std::int64_t length = table.shape[1], half = table.shape[2];
  expect(table.shape.rank == 3 && table.shape[0] == 2 && half <= kMostPairs, "rotary",
         "the table is [2, length, d / 2] with d <= 512");
  if (x.rows() == 0) return;
  expect(half > 0 && length > 0 && x.width % (2 * half) == 0 && x.end(2 * half) <= x.stride(),
         "rotary", "x holds whole heads");
  fp32_of(table);  // throws where it is none
  const Rotation r{
      .x = span_of(x.tensor),
      .table = span_of(table),
      .rows = x.rows(),
      .stride = x.stride(),
      .first = x.first,
      .heads = x.width / (2 * half),
      .step = x.head_step(2 * half),
      .length = length,
      .half = half,
      .backward = backward,
      .vectors = aligned_columns(x) && x.step % kVector == 0 && aligned_rows({table}, half)};
  start("rotary", rotate, strided_grid(r.rows * r.heads * ceil_divide(half, kVector)), r);
}

}  // namespace

void add_rotary(KernelTable& table) {
  table.rotary_table = rotary_table;
  table.rotary = rotary;
}

}  // namespace plimsoll::kernels::cuda
