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
  negate,
  slice,  // a part, as a view
  concatenate,
  chunk,  // two halves, as views: the result, and the one beside it
  multiply,
  add,
  layer_norm,  // in: x, weight, maybe bias; makes statistics beside the result
  softmax,
  silu,
  top,  // the largest of each row; their places beside them
  sum,  // over the last axis, which stays
  sum_groups,  // over the axis before the last one
  divide_in_place,  // a /= b; a as it was beside it
  index,  // in: x, places
  fill,  // where a mask says so; in: x, mask
  fill_in_place,
  grouped_product,  // in: rows, weight, offsets of the groups
  integers,  // of integers, without gradients
  write_in_place,  // in: integers, and what is written there
  leave,  // a Python frame returns: what it held goes, if nothing else holds it
};
// Its result is in the memory of its first operand.
constexpr bool in_place(Kind kind) {
  return kind == Kind::slice || kind == Kind::chunk || kind == Kind::divide_in_place ||
         kind == Kind::fill_in_place || kind == Kind::write_in_place;
}

}  // namespace plimsoll::planner::tape
