// Norms as the functions that they are in Python; RMSNorm as Transformers writes it.
#include "planner/stacks/pytorch/block_plan.h"
#include "planner/stacks/pytorch/functions.h"
#include "planner/stacks/pytorch/modules.h"

namespace plimsoll::planner::pytorch {

using models::NormKind;
using tape::Function;
using tape::Kind;
using tape::ValueId;

namespace {

enum : tape::Extent { kRows = 1, kWidth, kPartialSums, kCounters, kStatistics };

struct NormOperands {
  ValueId x, weight, bias;
};

// x · 1/√(mean(x²) + eps) in fp32; `mean` has a name in Llama's code and dies with its frame.
ValueId normalize(Function& f, ValueId wide, bool holds_mean) {
  const ValueId mean = f.mean(f.apply(Kind::power, wide), kRows);
  if (holds_mean) f.hold(mean);
  const ValueId root = f.apply(Kind::rsqrt, f.apply(Kind::add_number, mean));
  return f.apply(Kind::multiply, wide, f.named(root, ".statistics"));
}

// LlamaRMSNorm (transformers models/llama/modeling_llama.py): weight · normalized.to(x's dtype).
void rms_norm(Function& f, const NormOperands& of, DType own, DType) {
  const ValueId normalized = normalize(f, f.named(f.cast(of.x, DType::fp32), ".input.fp32"), true);
  f.hold(normalized);
  f.result(f.apply(Kind::multiply, of.weight, f.named(f.cast(normalized, own), ".normalized")));
}

// Olmo2RMSNorm (models/olmo2/modeling_olmo2.py): (weight · normalized).to(x's dtype).
void rms_norm_fp32(Function& f, const NormOperands& of, DType own, DType) {
  const ValueId normalized = normalize(f, f.named(f.cast(of.x, DType::fp32), ".input.fp32"), true);
  f.hold(f.named(normalized, ".normalized"));
  f.result(f.cast(f.named(f.apply(Kind::multiply, of.weight, normalized), ".product"), own));
}

// Gemma2RMSNorm (models/gemma2/modeling_gemma2.py): (normalized · (1 + weight)).to(x's dtype). The
// product takes the name of the normalized values.
void rms_norm_one_plus(Function& f, const NormOperands& of, DType own, DType) {
  const ValueId normalized = normalize(f, f.named(f.cast(of.x, DType::fp32), ".input.fp32"), false);
  const ValueId weight = f.apply(Kind::add_number, f.cast(of.weight, DType::fp32));
  const ValueId product =
      f.apply(Kind::multiply, f.named(normalized, ".normalized"), f.named(weight, ".weight.cast"));
  f.hold(f.named(product, ".product"));
  f.result(f.cast(product, own));
}

// torch.rms_norm of x.float() where the weight has another dtype (torchtune modules/rms_norm.py;
// ATen/native/layer_norm.cpp, rms_norm_composite): eps is added in place, and the product is cast
// back.
void rms_norm_composite(Function& f, const NormOperands& of, DType own, DType) {
  const ValueId wide = f.named(f.cast(of.x, DType::fp32), ".input.fp32");
  const ValueId root = f.apply(Kind::rsqrt, f.mean(f.apply(Kind::power, wide), kRows));
  f.hold(wide);
  f.hold(root);
  const ValueId normalized = f.apply(Kind::multiply, wide, f.named(root, ".statistics"));
  const ValueId product = f.apply(Kind::multiply, f.named(normalized, ".normalized"), of.weight);
  f.result(f.cast(f.named(product, ".product"), own));
}

// RMSNorm of LitGPT 0.5.13 (model.py): x · x and not a power; x in fp32, its mean and the
// normalized values have names.
void rms_norm_product(Function& f, const NormOperands& of, DType own, DType) {
  const ValueId wide = f.named(f.cast(of.x, DType::fp32), ".input.fp32");
  const ValueId mean = f.mean(f.apply(Kind::multiply, wide, wide), kRows);
  const ValueId root = f.apply(Kind::rsqrt, f.apply(Kind::add_number, mean));
  const ValueId normalized = f.apply(Kind::multiply, wide, f.named(root, ".statistics"));
  for (const ValueId held : {wide, mean, normalized}) f.hold(held);
  const ValueId weight = f.named(f.cast(of.weight, DType::fp32), ".weight.cast");
  const ValueId product = f.apply(Kind::multiply, f.named(normalized, ".normalized"), weight);
  f.result(f.cast(f.named(product, ".product"), own));
}

// RMSNorm of LitGPT 0.3.0 (model.py): the same but that the normalized values are cast back before
// the weight is multiplied, and take the name of those that were not.
void rms_norm_product_low(Function& f, const NormOperands& of, DType own, DType) {
  const ValueId wide = f.named(f.cast(of.x, DType::fp32), ".input.fp32");
  const ValueId mean = f.mean(f.apply(Kind::multiply, wide, wide), kRows);
  const ValueId root = f.apply(Kind::rsqrt, f.apply(Kind::add_number, mean));
  const ValueId normalized = f.named(
      f.cast(f.apply(Kind::multiply, wide, f.named(root, ".statistics")), own), ".normalized");
  for (const ValueId held : {wide, mean, normalized}) f.hold(held);
  f.result(f.apply(Kind::multiply, normalized, of.weight));
}

// RMSNorm of torchtitan in 2024 (models/norms.py): (x.float() · …).type_as(x) · weight.
void rms_norm_inline(Function& f, const NormOperands& of, DType own, DType) {
  const ValueId normalized = normalize(f, f.named(f.cast(of.x, DType::fp32), ".input.fp32"), false);
  f.result(f.apply(Kind::multiply, f.named(f.cast(normalized, own), ".normalized"), of.weight));
}

// torch.nn.RMSNorm (_fused_rms_norm): as LayerNorm's kernel, without a mean.
void rms_norm_fused(Function& f, const NormOperands& of, DType, DType) {
  f.result(
      f.layer_norm({of.x, of.weight, tape::kNone}, {kStatistics, DType::boolean}, ".statistics"));
}

// torch.nn.LayerNorm, which autocast runs in fp32; its arguments are evaluated from the last to the
// first (as GCC does), and so the casts' gradients are made in the arguments' order.
void layer_norm(Function& f, const NormOperands& of, DType, DType wide) {
  const ValueId bias =
      of.bias == tape::kNone ? of.bias : f.named(f.cast(of.bias, wide), ".bias.cast");
  const ValueId weight = f.named(f.cast(of.weight, wide), ".weight.cast");
  const ValueId x = f.named(f.cast(of.x, wide), ".input.fp32");
  f.result(f.layer_norm({x, weight, bias}, {kStatistics, DType::boolean}, ".statistics"));
}

Function norm_function(const NormPart& part, const NormInput& x, const Regime& regime) {
  Function f;
  NormOperands of{f.given({tape::kAll, x.dtype}, x.grad, ".input"),
                  f.parameter({kWidth, regime.norm}, part.train_weight), tape::kNone};
  if (part.bias) of.bias = f.parameter({kWidth, regime.norm}, part.train_bias);
  f.sums_with(kWidth, {kPartialSums, kCounters});
  const DType wide = regime.autocast ? DType::fp32 : x.dtype;
  switch (part.kind) {
    case NormKind::rms_norm:
      rms_norm(f, of, x.dtype, wide);
      break;
    case NormKind::rms_norm_fp32:
      rms_norm_fp32(f, of, x.dtype, wide);
      break;
    case NormKind::rms_norm_one_plus:
      rms_norm_one_plus(f, of, x.dtype, wide);
      break;
    case NormKind::rms_norm_inline:
      rms_norm_inline(f, of, x.dtype, wide);
      break;
    case NormKind::rms_norm_fused:
      rms_norm_fused(f, of, x.dtype, wide);
      break;
    case NormKind::rms_norm_composite:
      rms_norm_composite(f, of, x.dtype, wide);
      break;
    case NormKind::rms_norm_product:
      rms_norm_product(f, of, x.dtype, wide);
      break;
    case NormKind::rms_norm_product_low:
      rms_norm_product_low(f, of, x.dtype, wide);
      break;
    case NormKind::layer_norm:
      layer_norm(f, of, x.dtype, wide);
      break;
  }
  f.named(f.result(), ".out");
  if (regime.by_node) f.part_nodes();
  return f;
}

}  // namespace

TapePart norm_tape(const ModuleNames& names, const NormPart& part, const NormInput& x,
                   const Regime& regime) {
  static tape::Rules<1u << 14> rules;
  std::size_t key = static_cast<std::size_t>(part.kind);
  key = key << 2 | tape::dtype_bits(x.dtype);
  key = key << 2 | tape::dtype_bits(regime.norm);
  for (const bool bit :
       {x.grad, part.train_weight, part.bias, part.train_bias, regime.autocast, regime.by_node})
    key = key << 1 | bit;
  return tape_part(names.module, rules.find(key, [&] { return norm_function(part, x, regime); }));
}

DType ModuleWriter::norm_out(DType input_dtype) const {
  if (regime_.patch.last != NormKernel::eager) return input_dtype;
  return norm_dtype(d_.norm, input_dtype, regime_);
}

TapeCounts ModuleWriter::norm_counts(const NormPart& part, const NormInput& x) const {
  TapeCounts counts{};
  counts[tape::kAll] = checked_multiply(x.rows, part.width);
  counts[kRows] = x.rows;
  counts[kWidth] = part.width;
  if (part.kind == NormKind::layer_norm) counts[kStatistics] = (fp32(x.rows) * 2).value();
  if (part.kind == NormKind::rms_norm_fused) counts[kStatistics] = fp32(x.rows).value();
  return counts;
}

void ModuleWriter::norm_forward(const ModuleNames& names, const NormPart& part, Ref input,
                                const NormInput& x, TapeSaved& s, bool stops, Ref into) {
  tape_forward(norm_tape(names, part, x, regime_), norm_counts(part, x), std::array{input}, s,
               stops, {}, into);
}

TensorId ModuleWriter::norm_backward(const ModuleNames& names, const NormPart& part,
                                     const NormInput& x, const TapeSaved& s, TensorId d_out,
                                     TensorId residual, const Place& at) {
  TapeCounts counts = norm_counts(part, x);
  const bool by_kernel = part.kind == NormKind::layer_norm || part.kind == NormKind::rms_norm_fused;
  if (part.train_weight && !by_kernel) {
    const ColumnSumScratch sum = column_sum(x.rows, part.width);
    counts[kPartialSums] = sum.partial.value();
    counts[kCounters] = sum.counters.value();
  }
  return tape_backward(norm_tape(names, part, x, regime_), counts, std::array{at.input}, s,
                       {.result = d_out,
                        .flowing = x.grad ? residual : kNoTensor,
                        .parameters = {&names, &names},
                        .into = at.into,
                        .held = at.held,
                        .result_shared = at.d_shared,
                        .flowing_shared = at.d_flowing_shared});
}

}  // namespace plimsoll::planner::pytorch
