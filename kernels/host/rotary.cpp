#include "kernels/host/blocks.h"
#include "kernels/rotary_frequency.h"

namespace plimsoll::kernels::host {

namespace {

void rotary_table(const RotaryFrequencies& frequencies, TensorView table) {
  expect(table.shape.rank == 3 && table.shape[0] == 2, "rotary_table", "it is [2, length, d / 2]");
  const std::int64_t length = table.shape[1], half = table.shape[2];
  float* cosines = fp32_of(table);
  float* sines = cosines + length * half;
  for (std::int64_t i = 0; i < half; ++i) {
    const float turn = rotary_frequency(frequencies, i, half);
    for (std::int64_t t = 0; t < length; ++t) {
      const double angle = static_cast<float>(t) * turn;
      cosines[t * half + i] = static_cast<float>(std::cos(angle));
      sines[t * half + i] = static_cast<float>(std::sin(angle));
    }
  }
}

void rotary(ConstTensorView table, bool backward, Columns x) {
  const std::int64_t length = table.shape[1], half = table.shape[2];
  expect(table.shape.rank == 3 && table.shape[0] == 2 && 2 * half <= kBlock, "rotary",
         "the table is [2, length, d / 2] with d <= 512");
  if (x.rows() == 0) return;
  expect(half > 0 && length > 0 && x.width % (2 * half) == 0 && x.end(2 * half) <= x.stride(),
         "rotary", "x holds whole heads");
  const float* cosines = fp32_of(table);
  const float* sines = cosines + length * half;
  for (std::int64_t t = 0; t < x.rows(); ++t) {
    const float* c = cosines + t % length * half;
    const float* s = sines + t % length * half;
    for (std::int64_t head = 0; head < x.width / (2 * half); ++head) {
      const std::int64_t first = t * x.stride() + x.first + head * x.head_step(2 * half);
      float v[kBlock];
      read(x.tensor, first, 2 * half, v);
      for (std::int64_t i = 0; i < half; ++i) {
        const float a = v[i], b = v[half + i], sine = backward ? -s[i] : s[i];
        v[i] = a * c[i] - b * sine;
        v[half + i] = b * c[i] + a * sine;
      }
      write(v, first, 2 * half, x.tensor);
    }
  }
}

}  // namespace

void add_rotary(KernelTable& table) {
  table.rotary_table = rotary_table;
  table.rotary = rotary;
}

}  // namespace plimsoll::kernels::host
