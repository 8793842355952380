// Rotary position embedding as Transformers, torchtune and LitGPT write it in Python.
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

// apply_rotary_pos_emb (models/gpt_oss/modeling_gpt_oss.py): of the halves x₁ and x₂,
// cat(x₁·cos - x₂·sin, x₂·cos + x₁·sin).
Function half_rotary_function(DType own, DType tables, bool grad) {
  Function f;
  const ValueId x = f.given({tape::kAll, own}, grad);
  const ValueId cos = f.given({kHalf, tables}, false);
  const ValueId sin = f.given({kHalf, tables}, false);
  const Function::Pair halves = f.chunk(x, kHalf);
  const auto times = [&](ValueId half, ValueId table) {
    return f.apply(Kind::multiply, half, table);
  };
  const ValueId first_cos = times(halves.first, cos), second_sin = times(halves.second, sin);
  const ValueId first = f.apply(Kind::subtract, first_cos, second_sin);
  const ValueId second_cos = times(halves.second, cos), first_sin = times(halves.first, sin);
  const ValueId second = f.apply(Kind::add, second_cos, first_sin);
  f.result(f.named(f.concatenate(first, second, tape::kAll), ".rotated"));
  return f;
}

// torchtune modules/position_embeddings.py, RotaryPositionalEmbeddings.forward (and
// Llama3ScaledRoPE, models/llama3_1/_position_embeddings.py): stack([x₀·cos - x₁·sin, x₁·cos +
// x₀·sin], -1) of neighbours in fp32, whose halves are views of it; names hold x and the stack
// until it returns.
Function pair_rotary_function(DType own, bool grad) {
  Function f;
  const ValueId x = f.given({tape::kAll, own}, grad);
  const ValueId table = f.given({kHalf, DType::fp32}, false);
  const ValueId wide = f.cast(x, DType::fp32);
  f.hold(wide);
  const auto turned = [&] { return f.apply(Kind::multiply, f.slice(wide, kHalf), table); };
  const ValueId first_even = turned(), first_odd = turned();
  const ValueId first = f.apply(Kind::subtract, first_even, first_odd);
  const ValueId second_odd = turned(), second_even = turned();
  const ValueId second = f.apply(Kind::add, second_odd, second_even);
  const ValueId both = f.concatenate(first, second, tape::kAll);
  f.hold(both);
  f.result(f.named(f.cast(both, own), ".rotated"));
  return f;
}

// litgpt 0.5.13, model.py, apply_rope: (x·cos + cat(-x₂, x₁)·sin).to(x's dtype).
Function joined_rotary_function(DType own, DType tables, bool grad) {
  Function f;
  const ValueId x = f.given({tape::kAll, own}, grad);
  const ValueId cos = f.given({tape::kAll, tables}, false);
  const ValueId sin = f.given({tape::kAll, tables}, false);
  const ValueId first = f.slice(x, kHalf), second = f.slice(x, kHalf);
  const ValueId turned = f.concatenate(f.apply(Kind::negate, second), first, tape::kAll);
  f.hold(turned);
  const ValueId product = f.apply(Kind::multiply, x, cos);
  const ValueId sum = f.apply(Kind::add, product, f.apply(Kind::multiply, turned, sin));
  f.hold(sum);
  f.result(f.named(f.cast(sum, own), ".rotated"));
  return f;
}

}  // namespace

TapePart joined_rotary_tape(const char* operand, DType own, DType tables, bool grad) {
  static tape::Rules<1u << 5> rules;
  const std::size_t key = (tape::dtype_bits(own) << 2 | tape::dtype_bits(tables)) << 1 | grad;
  return tape_part(operand,
                   rules.find(key, [&] { return joined_rotary_function(own, tables, grad); }));
}

TapePart pair_rotary_tape(const char* operand, DType own, bool grad) {
  static tape::Rules<1u << 3> rules;
  const std::size_t key = tape::dtype_bits(own) << 1 | grad;
  return tape_part(operand, rules.find(key, [&] { return pair_rotary_function(own, grad); }));
}

TapePart half_rotary_tape(const char* operand, DType own, DType tables, bool grad) {
  static tape::Rules<1u << 5> rules;
  const std::size_t key = (tape::dtype_bits(own) << 2 | tape::dtype_bits(tables)) << 1 | grad;
  return tape_part(operand,
                   rules.find(key, [&] { return half_rotary_function(own, tables, grad); }));
}

TapePart rotary_tape(const char* operand, DType own, DType tables, bool grad) {
  static tape::Rules<1u << 5> rules;
  const std::size_t key = (tape::dtype_bits(own) << 2 | tape::dtype_bits(tables)) << 1 | grad;
  return tape_part(operand, rules.find(key, [&] { return rotary_function(own, tables, grad); }));
}

}  // namespace plimsoll::planner::pytorch
