// What writers compute with numbers that may be expressions (sym_int.h).
#pragma once

#include <concepts>

#include "models/base/quantity.h"
#include "planner/program/sym_int.h"

namespace plimsoll::planner {

template <class T>
concept Whole = std::integral<T> || std::same_as<T, SymInt>;
template <class A, class B>
concept SymPair = Whole<A> && Whole<B> &&(std::same_as<A, SymInt> || std::same_as<B, SymInt>);

// Computed alike, so that no batch makes a difference between them.
inline bool same_expression(SymInt a, SymInt b) {
  return a.node() == b.node() && a.now() == b.now();
}

namespace symbolic {
inline SymInt result(SymOp op, SymInt a, SymInt b, std::int64_t value) {
  return (a.node() | b.node()) == 0 ? SymInt(value) : recorded(op, a, b, value);
}
inline bool less(SymInt a, SymInt b) {
  if ((a.node() | b.node()) != 0) guard_less(a, b);
  return a.now() < b.now();
}
inline bool equal(SymInt a, SymInt b) {
  if ((a.node() | b.node()) != 0) guard_equal(a, b);
  return a.now() == b.now();
}
}  // namespace symbolic

template <class A, class B>
requires SymPair<A, B> SymInt operator+(A a, B b) {
  const SymInt x = a, y = b;
  if (x.is(0)) return y;
  if (y.is(0)) return x;
  return symbolic::result(SymOp::add, x, y, checked_add(x.now(), y.now()));
}
template <class A, class B>
requires SymPair<A, B> SymInt operator-(A a, B b) {
  const SymInt x = a, y = b;
  if (y.is(0)) return x;
  return symbolic::result(SymOp::subtract, x, y, checked_subtract(x.now(), y.now()));
}
template <class A, class B>
requires SymPair<A, B> SymInt operator*(A a, B b) {
  const SymInt x = a, y = b;
  if (x.is(1) || y.is(0)) return y;
  if (y.is(1) || x.is(0)) return x;
  return symbolic::result(SymOp::multiply, x, y, checked_multiply(x.now(), y.now()));
}
template <class A, class B>
requires SymPair<A, B> SymInt operator/(A a, B b) {
  const SymInt x = a, y = b;
  return symbolic::result(SymOp::divide, x, y, x.now() / y.now());
}
template <class A, class B>
requires SymPair<A, B> SymInt operator%(A a, B b) {
  const SymInt x = a, y = b;
  return symbolic::result(SymOp::remainder, x, y, x.now() % y.now());
}
template <class A, class B>
requires SymPair<A, B>
bool operator==(A a, B b) {
  return symbolic::equal(a, b);
}
template <class A, class B>
requires SymPair<A, B>
bool operator<(A a, B b) {
  return symbolic::less(a, b);
}
template <class A, class B>
requires SymPair<A, B>
bool operator>(A a, B b) {
  return symbolic::less(b, a);
}
template <class A, class B>
requires SymPair<A, B>
bool operator<=(A a, B b) {
  return !symbolic::less(b, a);
}
template <class A, class B>
requires SymPair<A, B>
bool operator>=(A a, B b) {
  return !symbolic::less(a, b);
}

// The smallest multiple of `step` (> 0) that is >= a (>= 0).
inline SymInt round_up(SymInt a, std::int64_t step) {
  return symbolic::result(SymOp::round_up, a, step,
                          checked_multiply(plimsoll::ceil_divide(a.now(), step), step));
}
inline SymInt larger(SymInt a, SymInt b) {
  return symbolic::result(SymOp::larger, a, b, a.now() < b.now() ? b.now() : a.now());
}
inline SymInt smaller(SymInt a, SymInt b) {
  return symbolic::result(SymOp::smaller, a, b, a.now() < b.now() ? a.now() : b.now());
}

using plimsoll::ceil_divide;
using plimsoll::checked_multiply;
template <class A, class B>
requires SymPair<A, B> SymInt checked_multiply(A a, B b) {
  return a * b;
}
template <class A, class B>
requires SymPair<A, B> SymInt ceil_divide(A a, B b) {
  const SymInt x = a, y = b;
  return symbolic::result(SymOp::ceil_divide, x, y, plimsoll::ceil_divide(x.now(), y.now()));
}

}  // namespace plimsoll::planner
