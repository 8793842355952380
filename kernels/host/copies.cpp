#include "kernels/host/blocks.h"

namespace plimsoll::kernels::host {

namespace {

void cast(ConstTensorView x, TensorView y) {
  expect(x.elements() == y.elements(), "cast", "y is as large as x");
  in_blocks(x.elements(), [&](std::int64_t first, std::int64_t n) {
    float v[kBlock];
    read(x, first, n, v);
    write(v, first, n, y);
  });
}

void add(ConstTensorView x, TensorView y) {
  expect(x.elements() == y.elements(), "add", "y is as large as x");
  in_blocks(x.elements(), [&](std::int64_t first, std::int64_t n) {
    float v[kBlock], sum[kBlock];
    read(x, first, n, v);
    read(y, first, n, sum);
    add_scaled(1, v, n, sum);
    write(sum, first, n, y);
  });
}

void scale(float factor, TensorView y) {
  in_blocks(y.elements(), [&](std::int64_t first, std::int64_t n) {
    float v[kBlock];
    read(y, first, n, v);
    for (std::int64_t i = 0; i < n; ++i) v[i] *= factor;
    write(v, first, n, y);
  });
}

void fill(float value, TensorView y) {
  if (y.dtype == DType::int32) {
    std::int32_t* to = int32_of(y);
    std::fill(to, to + y.elements(), static_cast<std::int32_t>(value));
    return;
  }
  float v[kBlock];
  std::fill(v, v + kBlock, value);
  in_blocks(y.elements(), [&](std::int64_t first, std::int64_t n) { write(v, first, n, y); });
}

}  // namespace

void add_copies(KernelTable& table) {
  table.cast = cast;
  table.add = add;
  table.scale = scale;
  table.fill = fill;
}

}  // namespace plimsoll::kernels::host
