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
  const ValueId of = in_place(kind) ? value(in[0]).storage : kNone;
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

ValueId Function::softmax(ValueId x, DType to) {
  return make(Kind::softmax, {x, kNone, kNone}, {value(x).size.extent, to});
}

Function::Pair Function::chunk(ValueId x, Extent half) {
  const ValueId first = make(Kind::chunk, {x, kNone, kNone}, {half, value(x).size.dtype});
  Value other = value(first);
  return {first, operations_.back().beside = add(other)};
}

Function::Pair Function::top(ValueId x, Extent of, const char* suffix) {
  const ValueId largest = make(Kind::top, {x, kNone, kNone}, {of, value(x).size.dtype});
  const Value places{.size = {of, DType::int64}, .made = true, .suffix = suffix};
  return {largest, operations_.back().beside = add(places)};
}

ValueId Function::divide_in_place(ValueId a, ValueId b, const char* suffix) {
  const ValueId out = make(Kind::divide_in_place, {a, b, kNone}, value(a).size);
  if (value(out).grad)
    operations_.back().beside = add({.size = value(a).size, .made = true, .suffix = suffix});
  return out;
}

ValueId Function::index(ValueId x, ValueId places, Extent to, std::array<Extent, 2> scratch) {
  const ValueId out = make(Kind::index, {x, places, kNone}, {to, value(x).size.dtype});
  operations_.back().scratch = scratch;
  return out;
}

ValueId Function::fill(Kind kind, ValueId x, ValueId mask) {
  return make(kind, {x, mask, kNone}, value(x).size);
}

ValueId Function::clamp(Kind kind, ValueId x, Extent one) {
  const ValueId out = apply(kind, x);
  operations_.back().scratch = {one, kAll};
  return out;
}

ValueId Function::grouped_mm(Operands of, Extent to, std::array<Extent, 2> scratch) {
  const ValueId out = make(Kind::grouped_mm, of, {to, value(of[0]).size.dtype});
  operations_.back().scratch = scratch;
  return out;
}

ValueId Function::integers(ValueId of, Size size, std::array<Extent, 2> scratch) {
  const ValueId out = make(Kind::integers, {of, kNone, kNone}, size);
  operations_.back().scratch = scratch;
  return out;
}

Function::Pair Function::sort(ValueId of, std::array<Extent, 2> scratch) {
  const ValueId sorted = integers(of, value(of).size, scratch);
  return {sorted, operations_.back().beside = add({.size = value(of).size, .made = true})};
}

ValueId Function::write_in_place(Operands of) {
  return make(Kind::write_in_place, of, value(of[0]).size);
}

ValueId Function::resize(Kind kind, ValueId x, Extent to) {
  return make(kind, {x, kNone, kNone}, {to, value(x).size.dtype});
}

ValueId Function::bmm(Kind kind, Operands of, Extent to, std::array<Extent, 4> shape, Extent copy) {
  const ValueId out = make(kind, of, {to, value(of[0]).size.dtype});
  operations_.back().shape = shape;
  operations_.back().scratch = {copy, kAll};
  return out;
}

ValueId Function::safe_softmax(ValueId x, std::array<Extent, 2> scratch) {
  const ValueId out = apply(Kind::safe_softmax, x);
  operations_.back().scratch = scratch;
  return out;
}

ValueId Function::dropout(ValueId x, const char* mask_suffix) {
  const ValueId out = apply(Kind::dropout, x);
  const Size mask{value(x).size.extent, DType::boolean};
  operations_.back().beside = add({.size = mask, .made = true, .suffix = mask_suffix});
  return out;
}

ValueId Function::nll(Operands of, Size to, const char* suffix) {
  const ValueId out = make(Kind::nll, of, to);
  operations_.back().beside = add({.size = to, .made = true, .suffix = suffix});
  return out;
}

void Function::leave(ValueId value) {
  operations_.push_back({Kind::leave, {value, kNone, kNone}});
}

ValueId Function::named(ValueId id, const char* suffix) {
  values_[static_cast<std::size_t>(id)].suffix = suffix;
  return id;
}

bool Function::held(ValueId id) const {
  return std::ranges::any_of(held_,
                             [&](ValueId h) { return value(h).storage == value(id).storage; });
}

bool Function::is_result(ValueId id) const {
  const auto is = [&](ValueId r) { return value(r).storage == value(id).storage; };
  return is(result_) || std::ranges::any_of(also_results_, is);
}

const std::array<Extent, 2>* Function::sum_scratch(Extent to) const {
  const auto found = std::ranges::find(sums_, to, &Sum::to);
  return found == sums_.end() ? nullptr : &found->scratch;
}

// derivatives.yaml (torch 2.11): pow and clamp read what went in; rsqrt, tanh and sigmoid their
// result; a product each
// factor where the other one requires a gradient; a dropout its mask; layer_norm its operands, mean
// and 1/std; softmax its result; a division made in place its divisor and a copy of what was
// divided.
Function::Keeps Function::kept_by(const Operation& of) const {
  Keeps keeps;
  if (of.out == kNone || !value(of.out).grad) return keeps;
  switch (of.kind) {
    case Kind::power:
      keeps.in[0] = of.in[0];
      break;
    case Kind::rsqrt:
    case Kind::tanh:
    case Kind::sigmoid:
    case Kind::softmax:
    case Kind::safe_softmax:
    case Kind::log_softmax:
      keeps.out = true;
      break;
    case Kind::silu:
    case Kind::clamp_above:
    case Kind::clamp:
      keeps.in[0] = of.in[0];
      break;
    case Kind::nll:
      keeps.in = of.in;
      keeps.beside = true;
      break;
    case Kind::top:
    case Kind::dropout:
      keeps.beside = true;
      break;
    case Kind::divide_in_place:
      keeps.in[1] = of.in[1];
      keeps.beside = true;
      break;
    case Kind::index:
    case Kind::fill:
    case Kind::fill_in_place:
      keeps.in = {kNone, of.in[1], of.in[2]};
      break;
    case Kind::grouped_mm:
      if (value(of.in[1]).grad) keeps.in[0] = of.in[0];
      if (value(of.in[0]).grad) keeps.in[1] = of.in[1];
      keeps.in[2] = of.in[2];
      break;
    case Kind::multiply:
    case Kind::bmm:
    case Kind::transposed_bmm:
    case Kind::baddbmm:
    case Kind::fold:
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
    case Kind::chunk:
    case Kind::add:
    case Kind::add_in_place:
    case Kind::subtract:
    case Kind::sum:
    case Kind::sum_groups:
    case Kind::integers:
    case Kind::write_in_place:
    case Kind::copy:
    case Kind::laid_out:
    case Kind::view:
    case Kind::repeat:
    case Kind::expand:
    case Kind::leave:
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
