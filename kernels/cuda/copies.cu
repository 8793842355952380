// Copies: cast, add, scale, fill.
//
// Thread mapping: elementwise (kernels/device/elementwise.cuh).
// Memory: cast 1 read and 1 write of an element, add 2 + 1, scale 1 + 1, fill 1 write.
// Numerics: fp32, rounded once to nearest even; the host's bits.
#include "kernels/cuda/elementwise.h"

namespace plimsoll::kernels::cuda {

namespace {

using device::Nothing;

struct Cast {
  using State = Nothing;
  __device__ void operator()(State&, std::int64_t, const float* in, float* out) const {
    out[0] = in[0];
  }
};
struct Add {
  using State = Nothing;
  __device__ void operator()(State&, std::int64_t, const float* in, float* out) const {
    out[0] = in[1] + in[0];
  }
};
struct Scale {
  using State = Nothing;
  float factor;
  __device__ void operator()(State&, std::int64_t, const float* in, float* out) const {
    out[0] = in[0] * factor;
  }
};

// Whole words of a value that is already in the view's dtype; `words` of them, then a last half.
__global__ void __launch_bounds__(kThreads)
    fill_words(std::uint32_t* to, std::int64_t words, std::uint32_t value, bool half_more) {
  for (std::int64_t i = device::grid_thread(); i < words; i += device::grid_threads())
    to[i] = value;
  if (half_more && device::grid_thread() == 0)
    reinterpret_cast<std::uint16_t*>(to + words)[0] = static_cast<std::uint16_t>(value);
}
__global__ void __launch_bounds__(kThreads)
    fill_half_words(std::uint16_t* to, std::int64_t n, std::uint16_t value) {
  for (std::int64_t i = device::grid_thread(); i < n; i += device::grid_threads()) to[i] = value;
}

void cast(ConstTensorView x, TensorView y) {
  expect(x.elements() == y.elements(), "cast", "y is as large as x");
  start_elementwise("cast", Cast{}, x.elements(), {x}, {y});
}

void add(ConstTensorView x, TensorView y) {
  expect(x.elements() == y.elements(), "add", "y is as large as x");
  start_elementwise("add", Add{}, x.elements(), {x, y}, {y});
}

void scale(float factor, TensorView y) {
  start_elementwise("scale", Scale{factor}, y.elements(), {y}, {y});
}

std::uint32_t word_of(float value, DType dtype) {
  if (dtype == DType::int32) return static_cast<std::uint32_t>(static_cast<std::int32_t>(value));
  if (dtype == DType::fp32) return std::bit_cast<std::uint32_t>(value);
  const std::uint32_t half =
      dtype == DType::bf16 ? narrowed<Bf16>(value).bits : narrowed<Fp16>(value).bits;
  return half << 16 | half;
}

void fill(float value, TensorView y) {
  if (y.dtype != DType::int32) span_of(y);  // throws where it is no storage type
  const std::int64_t n = y.elements();
  const std::uint32_t word = word_of(value, y.dtype);
  if (reinterpret_cast<std::uintptr_t>(y.data) % 4 != 0)
    return start("fill", fill_half_words, strided_grid(n), static_cast<std::uint16_t*>(y.data), n,
                 static_cast<std::uint16_t>(word));
  const std::int64_t words = bits(y.dtype) == 16 ? n / 2 : n;
  start("fill", fill_words, strided_grid(n), static_cast<std::uint32_t*>(y.data), words, word,
        bits(y.dtype) == 16 && n % 2 != 0);
}

}  // namespace

void add_copies(KernelTable& table) {
  table.cast = cast;
  table.add = add;
  table.scale = scale;
  table.fill = fill;
}

}  // namespace plimsoll::kernels::cuda
