// Rotary position embedding as Transformers writes it in Python.
#include "planner/stacks/pytorch/functions.h"

namespace plimsoll::planner::pytorch {

using tape::Function;
using tape::Kind;
using tape::ValueId;

namespace {

// apply_rotary_pos_emb (models/llama/modeling_llama.py): x·cos + rotate_half(x)·sin, where
// rotate_half is cat(-x₂, x₁).
Function rotary_function(DType own, DType tables, bool grad) {
  Function f;
  const ValueId x = f.given({tape::kAll, own}, grad);
  const ValueId cos = f.given({tape::kAll, tables}, false);
  const ValueId sin = f.given({tape::kAll, tables}, false);
  const ValueId product = f.apply(Kind::multiply, x, cos);
  const ValueId first = f.slice(x, kHalf), second = f.slice(x, kHalf);
  const ValueId half = f.concatenate(f.apply(Kind::negate, second), first, tape::kAll);
  f.result(f.named(f.apply(Kind::add, product, f.apply(Kind::multiply, half, sin)), ".rotated"));
  return f;
}

}  // namespace

TapePart rotary_tape(const char* operand, DType own, DType tables, bool grad) {
  static tape::Rules<1u << 5> rules;
  const std::size_t key = (tape::dtype_bits(own) << 2 | tape::dtype_bits(tables)) << 1 | grad;
  return tape_part(operand, rules.find(key, [&] { return rotary_function(own, tables, grad); }));
}

}  // namespace plimsoll::planner::pytorch
