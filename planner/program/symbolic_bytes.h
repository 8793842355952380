// Bytes as expressions of a step's batch (sym_int.h).
#pragma once

#include <array>
#include <concepts>
#include <cstdint>
#include <span>
#include <vector>

#include "models/base/dtype.h"
#include "planner/program/symbolic.h"

namespace plimsoll::planner {

class SymBytes {
 public:
  constexpr SymBytes() = default;
  constexpr SymBytes(Bytes bytes) : value_(bytes.value()) {}
  constexpr explicit SymBytes(SymInt value) : value_(value) {}

  operator Bytes() const { return Bytes(value_); }  // guarded to be so many
  SymInt value() const { return value_; }
  double real() const { return value_.real(); }  // as SymInt's
  Bytes now() const { return Bytes(value_.now()); }  // as SymInt's

  SymBytes& operator+=(SymBytes o) {
    value_ = value_ + o.value_;
    return *this;
  }
  SymBytes& operator-=(SymBytes o) {
    value_ = value_ - o.value_;
    return *this;
  }

 private:
  SymInt value_;
};

template <class A, class B>
concept SymBytesPair = (std::same_as<A, SymBytes> || std::same_as<A, Bytes>)&&(
    std::same_as<B, SymBytes> || std::same_as<B, Bytes>)&&(std::same_as<A, SymBytes> ||
                                                           std::same_as<B, SymBytes>);

template <class A, class B>
requires SymBytesPair<A, B> SymBytes operator+(A a, B b) {
  return SymBytes(SymBytes(a).value() + SymBytes(b).value());
}
template <class A, class B>
requires SymBytesPair<A, B> SymBytes operator-(A a, B b) {
  return SymBytes(SymBytes(a).value() - SymBytes(b).value());
}
template <class B, class N>
concept SymProduct = Whole<N> &&
    (std::same_as<B, SymBytes> || (std::same_as<B, Bytes> && std::same_as<N, SymInt>));
template <class B, class N>
requires SymProduct<B, N> SymBytes operator*(B bytes, N n) {
  return SymBytes(SymBytes(bytes).value() * n);
}
template <class N, class B>
requires SymProduct<B, N> SymBytes operator*(N n, B bytes) {
  return bytes * n;
}
template <class A, class B>
requires SymBytesPair<A, B>
bool operator==(A a, B b) {
  return SymBytes(a).value() == SymBytes(b).value();
}
template <class A, class B>
requires SymBytesPair<A, B>
bool operator<(A a, B b) {
  return SymBytes(a).value() < SymBytes(b).value();
}
template <class A, class B>
requires SymBytesPair<A, B>
bool operator>(A a, B b) {
  return b < a;
}
template <class A, class B>
requires SymBytesPair<A, B>
bool operator<=(A a, B b) {
  return !(b < a);
}
template <class A, class B>
requires SymBytesPair<A, B>
bool operator>=(A a, B b) {
  return !(a < b);
}

inline SymBytes larger(SymBytes a, SymBytes b) {
  return SymBytes(larger(a.value(), b.value()));
}
// How often each of several sizes is in a sum.
using Multiples = std::vector<std::int8_t>;
// The largest of the sums; 0 where there is none. As one expression, which is never looked up: who
// needs it again keeps it.
SymBytes highest_sum(std::span<const SymBytes> sizes, std::span<const Multiples> sums);

using plimsoll::round_up;
inline SymBytes round_up(SymBytes bytes, std::int64_t step) {
  return SymBytes(round_up(bytes.value(), step));
}

using plimsoll::storage;
// Of `elements` packed values (models/base/dtype.h).
inline SymBytes storage(SymInt elements, DType dtype) {
  const std::int64_t b = bits(dtype);
  return SymBytes(b >= 8 ? elements * (b / 8) : ceil_divide(elements, 8 / b));
}

// Bytes of so many values as the allocator counts them, of those that were asked for lately.
class BytesOfValues {
 public:
  template <class Count>
  SymBytes find(SymInt values, DType dtype, Count&& count) {
    if (values.node() == 0) return count();
    Known& known =
        all_[(std::size_t{4} * values.node() + static_cast<std::size_t>(dtype)) % all_.size()];
    if (known.node != values.node() || known.dtype != dtype)
      known = {values.node(), dtype, count()};
    return known.bytes;
  }

 private:
  struct Known {
    std::uint32_t node = 0;
    DType dtype = DType::fp32;
    SymBytes bytes;
  };
  std::array<Known, 128> all_;
};

}  // namespace plimsoll::planner
