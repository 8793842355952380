// A function of eager PyTorch as the elementary operations that it runs, in their order.
//
// Written once, forward only: what autograd keeps of it, its backward, what each moment takes and
// where Python lets go follow (script.h). A value dies with its last use here, unless autograd
// keeps it or a local variable holds it until the function returns.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "models/base/dtype.h"

namespace plimsoll::planner::tape {

using ValueId = std::int8_t;
inline constexpr ValueId kNone = -1;

// Which of the caller's counts of elements a value has. kAll is the widest: what meets it in an
// operation is broadcast to it.
using Extent = std::uint8_t;
inline constexpr Extent kAll = 0;

// Bytes of a value once the counts are known; bytes themselves are DType::boolean.
struct Size {
  Extent extent = kAll;
  DType dtype = DType::fp32;
  bool operator==(const Size&) const = default;
};

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
  multiply,
  add,
  layer_norm,  // in: x, weight, maybe bias; makes statistics beside the result
};

struct Value {
  Size size;
  bool grad = false;  // requires one
  bool made = false;  // by an operation here; else the caller's
  bool parameter = false;
  ValueId storage = kNone;  // whose memory it is: its own, or what it is a view of
  const char* suffix = "";  // of its tensor's name, behind the module's
};

using Operands = std::array<ValueId, 3>;
inline constexpr Operands kNoOperands{kNone, kNone, kNone};

struct Operation {
  Kind kind = Kind::cast;
  Operands in = kNoOperands;
  ValueId out = kNone;
  ValueId beside = kNone;  // made with the result and kept wherever the operation keeps anything
};

class Function {
 public:
  ValueId given(Size size, bool grad, const char* suffix = "");
  ValueId parameter(Size size, bool trains);
  ValueId cast(ValueId x, DType to);  // x itself where it has that dtype
  ValueId apply(Kind kind, ValueId x);
  ValueId apply(Kind kind, ValueId a, ValueId b);  // the result has the promoted dtype
  ValueId mean(ValueId x, Extent rows);
  ValueId slice(ValueId x, Extent part);
  ValueId concatenate(ValueId a, ValueId b, Extent whole);
  ValueId layer_norm(Operands of, Size statistics, const char* suffix);
  ValueId named(ValueId value, const char* suffix);
  // A local variable holds it until the function returns.
  void hold(ValueId value) { held_.push_back(value); }
  void result(ValueId value) { result_ = value; }
  // What a sum down to `to` takes beside its result.
  void sums_with(Extent to, std::array<Extent, 2> scratch) { sums_.push_back({to, scratch}); }

  const Value& value(ValueId id) const { return values_[static_cast<std::size_t>(id)]; }
  const std::vector<Value>& values() const { return values_; }
  const std::vector<Operation>& operations() const { return operations_; }
  bool held(ValueId value) const;
  ValueId result() const { return result_; }
  // The scratch of a sum down to this extent, if any.
  const std::array<Extent, 2>* sum_scratch(Extent to) const;
  // What autograd keeps of an operation: its operands, and whether its result.
  struct Keeps {
    Operands in = kNoOperands;
    bool out = false, beside = false;
    bool none() const { return in == kNoOperands && !out; }
  };
  Keeps kept_by(const Operation& operation) const;
  // Everything that is kept and made here, by storage, in the order of making.
  std::vector<ValueId> kept() const;

 private:
  ValueId add(Value value);
  ValueId make(Kind kind, Operands in, Size size);
  std::vector<Value> values_;
  std::vector<Operation> operations_;
  std::vector<ValueId> held_;
  struct Sum {
    Extent to;
    std::array<Extent, 2> scratch;
  };
  std::vector<Sum> sums_;
  ValueId result_ = kNone;
};

}  // namespace plimsoll::planner::tape
