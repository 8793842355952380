// Elementary operations of eager PyTorch (tape/function.h).
#pragma once

#include <cstdint>

namespace plimsoll::planner::tape {

enum class Kind : std::uint8_t {
  cast,
  power,  // to a number other than 1
  mean,  // over the last axis
  add_number,
  scale,  // times a number
  rsqrt,
  tanh,
  sigmoid,
  clamp_above,  // at a number
  clamp,  // between two numbers
  negate,
  slice,  // a part, as a view
  concatenate,
  chunk,  // two halves, as views: the result, and the one beside it
  multiply,
  add,
  subtract,
  layer_norm,  // in: x, weight, maybe bias; makes statistics beside the result
  softmax,
  log_softmax,
  nll,  // negative log-likelihoods, averaged; in: of each class, targets; makes the weight beside
        // it
  silu,
  top,  // the largest of each row; their places beside them
  sum,  // over the last axis, which stays
  sum_groups,  // over the axis before the last one
  divide_in_place,  // a /= b; a as it was beside it
  index,  // in: x, places
  fill,  // where a mask says so; in: x, mask
  fill_in_place,
  add_in_place,
  grouped_mm,  // in: rows, weight, offsets of the groups
  integers,  // of integers, without gradients
  write_in_place,  // in: integers, and what is written there
  copy,  // laid out anew
  laid_out,  // what a later copy laid out: as it is, but its gradient is copied
  view,  // as it is, as a node of its own
  repeat,  // to another extent: each head of keys or values once for each query head of its group
  expand,  // the same as a view
  bmm,  // in: a, b
  transposed_bmm,  // a · bᵀ
  baddbmm,  // a · bᵀ times a number, beside a bias; in: a, b, bias
  fold,  // a · b times a number, beside a frozen weight; in: a, b, weight; `a` is copied for each
         // GEMM
  safe_softmax,  // of rows that may be masked throughout
  dropout,  // makes its mask beside the result
  leave,  // a frame returns: what it held goes, if nothing else holds it
};
// Its result is in the memory of its first operand.
constexpr bool in_place(Kind kind) {
  return kind == Kind::slice || kind == Kind::chunk || kind == Kind::divide_in_place ||
         kind == Kind::fill_in_place || kind == Kind::add_in_place ||
         kind == Kind::write_in_place || kind == Kind::laid_out || kind == Kind::view ||
         kind == Kind::expand;
}
constexpr bool is_bmm(Kind kind) {
  return kind == Kind::bmm || kind == Kind::transposed_bmm || kind == Kind::baddbmm ||
         kind == Kind::fold;
}
// Compiled code does it beside its neighbours.
constexpr bool elementwise(Kind kind) {
  return kind == Kind::scale || kind == Kind::tanh || kind == Kind::add || kind == Kind::dropout;
}

}  // namespace plimsoll::planner::tape
