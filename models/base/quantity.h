// Bytes and counts: signed 64-bit integers that never mix and never wrap.
#pragma once

#include <compare>
#include <cstdint>

#include "models/base/error.h"

namespace plimsoll {

[[noreturn]] void overflow(const char* operation, std::int64_t a, std::int64_t b);

inline std::int64_t checked_add(std::int64_t a, std::int64_t b) {
  std::int64_t r;
  if (__builtin_add_overflow(a, b, &r)) [[unlikely]]
    overflow("+", a, b);
  return r;
}
inline std::int64_t checked_subtract(std::int64_t a, std::int64_t b) {
  std::int64_t r;
  if (__builtin_sub_overflow(a, b, &r)) [[unlikely]]
    overflow("-", a, b);
  return r;
}
inline std::int64_t checked_multiply(std::int64_t a, std::int64_t b) {
  std::int64_t r;
  if (__builtin_mul_overflow(a, b, &r)) [[unlikely]]
    overflow("*", a, b);
  return r;
}
// ceil(a / b) for a >= 0, b > 0, without the overflow of (a + b - 1) / b.
constexpr std::int64_t ceil_divide(std::int64_t a, std::int64_t b) {
  return a / b + (a % b != 0 ? 1 : 0);
}

// A whole number of one thing. Throws Error{bad_input} ("overflow") beyond 2^63.
template <class Tag>
class Quantity {
 public:
  constexpr Quantity() = default;
  constexpr explicit Quantity(std::int64_t value) : value_(value) {}

  constexpr std::int64_t value() const { return value_; }
  constexpr double real() const { return static_cast<double>(value_); }
  constexpr auto operator<=>(const Quantity&) const = default;

  Quantity& operator+=(Quantity o) {
    value_ = checked_add(value_, o.value_);
    return *this;
  }
  Quantity& operator-=(Quantity o) {
    value_ = checked_subtract(value_, o.value_);
    return *this;
  }
  friend Quantity operator+(Quantity a, Quantity b) { return a += b; }
  friend Quantity operator-(Quantity a, Quantity b) { return a -= b; }
  friend Quantity operator-(Quantity a) { return Quantity(0) - a; }
  friend Quantity operator*(Quantity a, std::int64_t n) {
    return Quantity(checked_multiply(a.value_, n));
  }
  friend Quantity operator*(std::int64_t n, Quantity a) { return a * n; }

 private:
  std::int64_t value_ = 0;
};

using Bytes = Quantity<struct BytesTag>;
using Count = Quantity<struct CountTag>;  // elements, parameters, tokens

inline namespace literals {
constexpr Bytes operator""_B(unsigned long long n) {
  return Bytes(static_cast<std::int64_t>(n));
}
constexpr Bytes operator""_KiB(unsigned long long n) {
  return Bytes(static_cast<std::int64_t>(n) << 10);
}
constexpr Bytes operator""_MiB(unsigned long long n) {
  return Bytes(static_cast<std::int64_t>(n) << 20);
}
constexpr Bytes operator""_GiB(unsigned long long n) {
  return Bytes(static_cast<std::int64_t>(n) << 30);
}
}  // namespace literals

// The smallest multiple of `step` (> 0) that is >= `bytes` (>= 0).
inline Bytes round_up(Bytes bytes, std::int64_t step) {
  return Bytes(checked_multiply(ceil_divide(bytes.value(), step), step));
}

}  // namespace plimsoll
