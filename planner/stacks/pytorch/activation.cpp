// Activations that are written in Python.
#include "planner/stacks/pytorch/functions.h"

namespace plimsoll::planner::pytorch {

using tape::Function;
using tape::Kind;
using tape::ValueId;

namespace {

// NewGELUActivation (transformers activations.py): 0.5·x·(1 + tanh(c·(x + 0.044715·x³))). Autocast
// runs pow in fp32.
Function gelu_function(DType own, DType power, bool grad) {
  Function f;
  const ValueId x = f.given({tape::kAll, own}, grad);
  const ValueId half = f.named(f.apply(Kind::scale, x), ".half");
  const ValueId cube = f.apply(Kind::power, f.named(f.cast(x, power), ".input.fp32"));
  const ValueId inner = f.apply(Kind::add, x, f.apply(Kind::scale, cube));
  const ValueId tanh = f.apply(Kind::tanh, f.apply(Kind::scale, inner));
  const ValueId one_plus = f.apply(Kind::add_number, f.named(tanh, ".tanh"));
  f.result(f.apply(Kind::multiply, half, f.named(one_plus, ".one_plus_tanh")));
  return f;
}

// 0.79788456·x · (1 + 0.044715·x·x), and its tanh.
ValueId bloom_tanh(Function& f, ValueId x) {
  const ValueId scaled = f.apply(Kind::scale, x);
  const ValueId square = f.apply(Kind::multiply, f.apply(Kind::scale, x), x);
  const ValueId inner = f.apply(Kind::multiply, scaled, f.apply(Kind::add_number, square));
  return f.apply(Kind::tanh, inner);
}

// transformers models/bloom/modeling_bloom.py, bloom_gelu_forward: 0.5·x · (1 + tanh).
Function bloom_gelu_function(DType dtype) {
  Function f;
  const ValueId x = f.given({tape::kAll, dtype}, false);
  const ValueId half = f.apply(Kind::scale, x);
  f.result(f.apply(Kind::multiply, half, f.apply(Kind::add_number, bloom_tanh(f, x))));
  return f;
}

// bloom_gelu_back of x and the gradient: tanh anew; then 0.5·x · ((1 - tanh²) · (0.79788456 +
// 0.1070322243·x·x)) + 0.5·(1 + tanh), times the gradient. tanh and the sum have names.
Function bloom_gelu_back_function(DType dtype, DType d_dtype) {
  Function f;
  const ValueId x = f.given({tape::kAll, dtype}, false);
  const ValueId d = f.given({tape::kAll, d_dtype}, false);
  const ValueId tanh = bloom_tanh(f, x), half = f.apply(Kind::scale, x);
  f.hold(tanh);
  const ValueId slope = f.apply(Kind::add_number, f.apply(Kind::multiply, tanh, tanh));
  const ValueId curve =
      f.apply(Kind::add_number, f.apply(Kind::multiply, f.apply(Kind::scale, x), x));
  const ValueId steep = f.apply(Kind::multiply, half, f.apply(Kind::multiply, slope, curve));
  const ValueId flat = f.apply(Kind::scale, f.apply(Kind::add_number, tanh));
  const ValueId sum = f.apply(Kind::add, steep, flat);
  f.hold(sum);
  f.result(f.named(f.cast(f.apply(Kind::multiply, sum, d), dtype), ".grad"));
  return f;
}

}  // namespace

TapePart bloom_gelu_tape(const char* name, DType dtype) {
  static tape::Rules<1u << 2> rules;
  return tape_part(name,
                   rules.find(tape::dtype_bits(dtype), [&] { return bloom_gelu_function(dtype); }));
}

TapePart bloom_gelu_back_tape(const char* name, DType dtype, DType d_dtype) {
  static tape::Rules<1u << 4> rules;
  const std::size_t key = tape::dtype_bits(dtype) << 2 | tape::dtype_bits(d_dtype);
  return tape_part(name, rules.find(key, [&] { return bloom_gelu_back_function(dtype, d_dtype); }));
}

TapePart gelu_tape(const char* name, DType own, DType power, bool grad) {
  static tape::Rules<1u << 5> rules;
  const std::size_t key = (tape::dtype_bits(own) << 2 | tape::dtype_bits(power)) << 1 | grad;
  return tape_part(name, rules.find(key, [&] { return gelu_function(own, power, grad); }));
}

}  // namespace plimsoll::planner::pytorch
