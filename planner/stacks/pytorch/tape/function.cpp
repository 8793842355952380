#include "planner/stacks/pytorch/tape/function.h"

#include <algorithm>

namespace plimsoll::planner::tape {

namespace {
DType promoted(DType a, DType b) {
  return a == b ? a : DType::fp32;
}
}  // namespace

ValueId Function::add(Value value) {
  const auto id = static_cast<ValueId>(values_.size());
  if (value.storage == kNone) value.storage = id;
  values_.push_back(value);
  return id;
}

ValueId Function::make(Kind kind, Operands in, Size size) {
  const auto wants = [&](ValueId id) { return id != kNone && value(id).grad; };
  const ValueId of = kind == Kind::slice ? value(in[0]).storage : kNone;
  const ValueId out =
      add({.size = size, .grad = std::ranges::any_of(in, wants), .made = true, .storage = of});
  operations_.push_back({kind, in, out, kNone});
  return out;
}

ValueId Function::given(Size size, bool grad, const char* suffix) {
  return add({.size = size, .grad = grad, .suffix = suffix});
}

ValueId Function::parameter(Size size, bool trains) {
  return add({.size = size, .grad = trains, .parameter = true});
}

ValueId Function::cast(ValueId x, DType to) {
  const Size size = value(x).size;
  return size.dtype == to ? x : make(Kind::cast, {x, kNone, kNone}, {size.extent, to});
}

ValueId Function::apply(Kind kind, ValueId x) {
  return make(kind, {x, kNone, kNone}, value(x).size);
}

ValueId Function::apply(Kind kind, ValueId a, ValueId b) {
  const Size of_a = value(a).size, of_b = value(b).size;
  const Extent extent = of_b.extent == kAll ? kAll : of_a.extent;
  return make(kind, {a, b, kNone}, {extent, promoted(of_a.dtype, of_b.dtype)});
}

ValueId Function::mean(ValueId x, Extent rows) {
  return make(Kind::mean, {x, kNone, kNone}, {rows, value(x).size.dtype});
}

ValueId Function::slice(ValueId x, Extent part) {
  return make(Kind::slice, {x, kNone, kNone}, {part, value(x).size.dtype});
}

ValueId Function::concatenate(ValueId a, ValueId b, Extent whole) {
  return make(Kind::concatenate, {a, b, kNone}, {whole, value(a).size.dtype});
}

ValueId Function::layer_norm(Operands of, Size statistics, const char* suffix) {
  const ValueId out = make(Kind::layer_norm, of, value(of[0]).size);
  const ValueId beside = add({.size = statistics, .made = true, .suffix = suffix});
  operations_.back().beside = beside;
  return out;
}

ValueId Function::named(ValueId id, const char* suffix) {
  values_[static_cast<std::size_t>(id)].suffix = suffix;
  return id;
}

bool Function::held(ValueId id) const {
  return std::ranges::any_of(held_,
                             [&](ValueId h) { return value(h).storage == value(id).storage; });
}

const std::array<Extent, 2>* Function::sum_scratch(Extent to) const {
  const auto found = std::ranges::find(sums_, to, &Sum::to);
  return found == sums_.end() ? nullptr : &found->scratch;
}

// derivatives.yaml (torch 2.11): pow reads its base; rsqrt and tanh their result; a product each
// factor where the other one requires a gradient; layer_norm its operands, mean and 1/std.
Function::Keeps Function::kept_by(const Operation& of) const {
  Keeps keeps;
  if (!value(of.out).grad) return keeps;
  switch (of.kind) {
    case Kind::power:
      keeps.in[0] = of.in[0];
      break;
    case Kind::rsqrt:
    case Kind::tanh:
      keeps.out = true;
      break;
    case Kind::multiply:
      if (value(of.in[1]).grad) keeps.in[0] = of.in[0];
      if (value(of.in[0]).grad) keeps.in[1] = of.in[1];
      break;
    case Kind::layer_norm:
      keeps.in = of.in;
      keeps.beside = true;
      break;
    case Kind::cast:
    case Kind::mean:
    case Kind::add_number:
    case Kind::scale:
    case Kind::negate:
    case Kind::slice:
    case Kind::concatenate:
    case Kind::add:
      break;
  }
  return keeps;
}

std::vector<ValueId> Function::kept() const {
  std::vector<bool> keeps(values_.size(), false);
  const auto keep = [&](ValueId id) {
    if (id == kNone) return;
    const ValueId storage = value(id).storage;
    if (value(storage).made) keeps[static_cast<std::size_t>(storage)] = true;
  };
  for (const Operation& operation : operations_) {
    const Keeps of = kept_by(operation);
    for (const ValueId id : of.in) keep(id);
    if (of.out) keep(operation.out);
    if (of.beside) keep(operation.beside);
  }
  std::vector<ValueId> all;
  for (std::size_t i = 0; i < keeps.size(); ++i)
    if (keeps[i]) all.push_back(static_cast<ValueId>(i));
  return all;
}

}  // namespace plimsoll::planner::tape
