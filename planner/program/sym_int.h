// Whole numbers as expressions of a step's batch, recorded while a writer computes them.
//
// A writer computes with SymInt and SymBytes as it would with numbers. While a SizeRecorder
// listens, each result remembers how it was computed, and each comparison on the way becomes a
// guard: what was recorded holds for all batches for which every comparison comes out as it did
// (torch's SymInt and guards, torch/fx/experimental/symbolic_shapes.py, do the same for compiled
// graphs). So the sizes of another batch need no writer, and cannot differ from what it would
// write.
//
// A symbolic number that is used as a plain one is guarded to be that number: never wrong, but good
// for batches with the same one alone.
#pragma once

#include <concepts>
#include <cstdint>

namespace plimsoll::planner {

enum class SymOp : std::uint8_t {
  constant,
  variable,
  add,
  subtract,
  multiply,
  divide,
  ceil_divide,
  remainder,
  round_up,
  larger,
  smaller,
  call,
  highest_sum,
};

// Several whole numbers to one; a call is the same for the same batch.
using SymFunction = std::int64_t (*)(std::int64_t, std::int64_t, std::int64_t, std::int64_t);

class SymInt {
 public:
  constexpr SymInt() = default;
  template <std::integral I>
  constexpr SymInt(I value) : value_(static_cast<std::int64_t>(value)) {}
  constexpr SymInt(std::int64_t value, std::uint32_t node) : value_(value), node_(node) {}

  operator std::int64_t() const { return node_ == 0 ? value_ : guarded(); }
  // For what an op asks of the GPU (Works), which nobody keeps while sizes are recorded; never for
  // a size or a choice.
  double real() const { return static_cast<double>(value_); }
  std::int64_t now() const { return value_; }  // for who records
  std::uint32_t node() const { return node_; }  // 0: a plain number
  bool is(std::int64_t value) const { return node_ == 0 && value_ == value; }

 private:
  std::int64_t guarded() const;
  std::int64_t value_ = 0;
  std::uint32_t node_ = 0;
};

// `value`: of the operation now. Plain where nobody listens.
SymInt recorded(SymOp op, SymInt a, SymInt b, std::int64_t value);
SymInt called(SymFunction function, SymInt a, SymInt b = 0, SymInt c = 0, SymInt d = 0);
// That a < b (or a == b) comes out as it does now.
void guard_less(SymInt a, SymInt b);
void guard_equal(SymInt a, SymInt b);

}  // namespace plimsoll::planner
