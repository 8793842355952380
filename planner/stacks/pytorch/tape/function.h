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
#include "planner/stacks/pytorch/tape/kind.h"

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
  // Bytes that its kernel takes beside the result, forward, and for each gradient; kAll: none.
  std::array<Extent, 2> scratch{};
  Operands through = kNoOperands;  // what its caller holds until it is done
  std::array<Extent, 4> shape{};  // of a GEMM: m, n, k, and how many
  Extent compiled = kAll;  // bytes that compiled code moves for it; kAll: not said
};

class Function {
 public:
  ValueId given(Size size, bool grad, const char* suffix = "");
  ValueId parameter(Size size, bool trains);
  ValueId cast(ValueId x, DType to);  // x itself where it has that dtype
  ValueId apply(Kind kind, ValueId x);
  ValueId apply(Kind kind, ValueId a, ValueId b);  // the result has the promoted dtype
  ValueId mean(ValueId x, Extent rows), slice(ValueId x, Extent part);
  ValueId concatenate(ValueId a, ValueId b, Extent whole);
  ValueId layer_norm(Operands of, Size statistics, const char* suffix);
  // One of several results, and the other one.
  struct Pair {
    ValueId first, second;
  };
  Pair chunk(ValueId x, Extent half);
  Pair top(ValueId x, Extent of, const char* suffix);
  ValueId sum(Kind kind, ValueId x, Size to) { return make(kind, {x, kNone, kNone}, to); }
  ValueId softmax(ValueId x, DType to), nll(Operands of, Size to, const char*suffix);
  ValueId divide_in_place(ValueId a, ValueId b, const char* suffix);
  // `scratch`: of the gradient: one, and the temporary storage of a sort of the places.
  ValueId index(ValueId x, ValueId places, Extent to, std::array<Extent, 2> scratch);
  void also_along(ValueId places) { operations_.back().in[2] = places; }  // on the axis before
  ValueId fill(Kind kind, ValueId x, ValueId mask);
  ValueId clamp(Kind kind, ValueId x, Extent one);  // of one value
  ValueId grouped_mm(Operands of, Extent to, std::array<Extent, 2> scratch);
  ValueId integers(ValueId of, Size size, std::array<Extent, 2> scratch = {kAll, kAll});
  Pair sort(ValueId of, std::array<Extent, 2> scratch);
  ValueId write_in_place(Operands of);
  ValueId copy(ValueId x) { return apply(Kind::copy, x); }
  ValueId resize(Kind kind, ValueId x, Extent to);
  ValueId bmm(Kind kind, Operands of, Extent to, std::array<Extent, 4> shape, Extent copy = kAll);
  ValueId safe_softmax(ValueId x, std::array<Extent, 2> scratch);
  ValueId dropout(ValueId x, const char* mask_suffix);
  void leave(ValueId value);
  // The caller of the last operation holds these until it is done.
  void hold_through(Operands values) { operations_.back().through = values; }
  ValueId named(ValueId value, const char* suffix);
  // A local variable holds it until the function returns.
  void hold(ValueId value) { held_.push_back(value); }
  void result(ValueId value) { result_ = value; }
  // Of the last operation, and of its backward.
  void compiled_moves(Extent bytes) { operations_.back().compiled = bytes; }
  void also_result(ValueId value) { also_results_.push_back(value); }  // beside the result
  const std::vector<ValueId>& also_results() const { return also_results_; }
  // Each node of the backward is an op: what hangs on a parameter's gradient runs behind its own.
  void part_nodes() { parts_nodes_ = true; }
  bool parts_nodes() const { return parts_nodes_; }
  // So is each operation of the forward. `fuses`: compiled code joins them with their neighbours.
  void part_operations(bool fuses) {
    parts_nodes_ = parts_operations_ = true;
    fuses_ = fuses;
  }
  bool parts_operations() const { return parts_operations_; }
  bool is_fused(Kind kind) const {
    return kind == Kind::cast || kind == Kind::nll || (fuses_ && elementwise(kind));
  }
  void keeps_given() { keeps_given_ = true; }  // the given values are autograd's alone
  bool given_kept() const { return keeps_given_; }
  // What a sum down to `to` takes beside its result.
  void sums_with(Extent to, std::array<Extent, 2> scratch) { sums_.push_back({to, scratch}); }

  const Value& value(ValueId id) const { return values_[static_cast<std::size_t>(id)]; }
  const std::vector<Value>& values() const { return values_; }
  const std::vector<Operation>& operations() const { return operations_; }
  bool held(ValueId value) const;
  ValueId result() const { return result_; }
  bool is_result(ValueId value) const;  // or stands in the same memory
  // The scratch of a sum down to this extent, if any.
  const std::array<Extent, 2>* sum_scratch(Extent to) const;
  // What autograd keeps of an operation: its operands, and whether its result.
  struct Keeps {
    Operands in = kNoOperands;
    bool out = false, beside = false;
    bool none() const { return in == kNoOperands && !out && !beside; }
  };
  Keeps kept_by(const Operation& operation) const;
  // Everything that is kept and made here, by storage, in the order of making.
  std::vector<ValueId> kept() const;

 private:
  ValueId add(Value value);
  ValueId make(Kind kind, Operands in, Size size);
  std::vector<Value> values_;
  std::vector<Operation> operations_;
  std::vector<ValueId> held_, also_results_;
  struct Sum {
    Extent to;
    std::array<Extent, 2> scratch;
  };
  std::vector<Sum> sums_;
  ValueId result_ = kNone;
  bool parts_nodes_ = false, parts_operations_ = false, fuses_ = false, keeps_given_ = false;
};

}  // namespace plimsoll::planner::tape
