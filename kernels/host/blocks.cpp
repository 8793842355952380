#include "kernels/host/blocks.h"

#include <cstring>

namespace plimsoll::kernels::host {

namespace {

template <class T>
void widen(const void* from, std::int64_t first, std::int64_t n, float* to) {
  const T* x = static_cast<const T*>(from) + first;
  for (std::int64_t i = 0; i < n; ++i) to[i] = widened(x[i]);
}
template <class T>
void narrow(const float* from, std::int64_t first, std::int64_t n, void* to) {
  T* y = static_cast<T*>(to) + first;
  for (std::int64_t i = 0; i < n; ++i) y[i] = narrowed<T>(from[i]);
}
[[noreturn]] void no_storage(DType dtype) {
  fail(ErrorKind::internal,
       "a kernel was given " + std::string(name_of(dtype)) + "; it takes fp32, bf16 and fp16");
}
template <class T, class View>
auto* typed(View view, DType dtype) {
  check(view.dtype == dtype, ErrorKind::internal, [&] {
    return "a kernel was given " + std::string(name_of(view.dtype)) + " where it takes " +
           std::string(name_of(dtype));
  });
  return static_cast<T*>(view.data);
}

}  // namespace

void read(ConstTensorView from, std::int64_t first, std::int64_t n, float* to) {
  if (n == 0) return;
  switch (from.dtype) {
    case DType::fp32:
      std::memcpy(to, static_cast<const float*>(from.data) + first,
                  static_cast<std::size_t>(n) * sizeof(float));
      return;
    case DType::bf16:
      return widen<Bf16>(from.data, first, n, to);
    case DType::fp16:
      return widen<Fp16>(from.data, first, n, to);
    default:
      no_storage(from.dtype);
  }
}

void write(const float* from, std::int64_t first, std::int64_t n, TensorView to) {
  if (n == 0) return;
  switch (to.dtype) {
    case DType::fp32:
      std::memcpy(static_cast<float*>(to.data) + first, from,
                  static_cast<std::size_t>(n) * sizeof(float));
      return;
    case DType::bf16:
      return narrow<Bf16>(from, first, n, to.data);
    case DType::fp16:
      return narrow<Fp16>(from, first, n, to.data);
    default:
      no_storage(to.dtype);
  }
}

float read_one(ConstTensorView from, std::int64_t at) {
  float value = 0;
  read(from, at, 1, &value);
  return value;
}
void write_one(float value, std::int64_t at, TensorView to) {
  write(&value, at, 1, to);
}

float* fp32_of(TensorView view) {
  return typed<float>(view, DType::fp32);
}
const float* fp32_of(ConstTensorView view) {
  return typed<const float>(view, DType::fp32);
}
double* fp64_of(TensorView view) {
  return typed<double>(view, DType::fp64);
}
std::int32_t* int32_of(TensorView view) {
  return typed<std::int32_t>(view, DType::int32);
}
const std::int32_t* int32_of(ConstTensorView view) {
  return typed<const std::int32_t>(view, DType::int32);
}

// Rate 1 drops everything: 2^32 is above every number, and the factor is never used.
Dropper::Dropper(const Dropout& dropout)
    : dropout_(dropout),
      bound_(static_cast<std::uint64_t>(std::ldexp(static_cast<double>(dropout.rate), 32))),
      factor_(dropout.rate < 1 ? 1 / (1 - dropout.rate) : 0) {}

void drop(const Dropout& dropout, std::int64_t first, std::int64_t n, float* values) {
  Dropper dropper(dropout);
  for (std::int64_t i = 0; i < n; ++i) values[i] = dropper(first + i, values[i]);
}

}  // namespace plimsoll::kernels::host
