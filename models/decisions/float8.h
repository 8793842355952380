// How our own runtime multiplies in 8 bits (--precision fp8-mixed): as torchao's Float8Linear of
// the recipe "tensorwise" (torchao 0.18, float8/float8_linear.py), with scales found anew for each
// tensor.
//
// All but the products is as with bf16-mixed: weights, activations and gradients have 16 bits, and
// what forward saves is saved in 16 bits. Inputs and weights are cast to e4m3, gradients of results
// to e5m2. Tensor cores want what is summed over side by side, so that each operand is cast as it
// lies or turned:
//
//   forward   the input of GEMMs that share it, once                      x8 [T in]
//             y = x8 · w8ᵀ, w cast within the op                          w8 [out in]
//   backward  the input of GEMMs that share it, once, turned              x8ᵀ [in T]
//             d_y of each GEMM, both ways in one pass                     d8 [T out], d8ᵀ [out T]
//             d_w += d8ᵀ · x8, with the bias's gradient from d_y
//             d_x  = d8 · w8, w cast within the op, turned                w8ᵀ [in out]
//
// A cast that is an op of its own makes temporaries that die with their last reader. The scale of a
// d_y, fp32 [2], is one of them; d_y dies with its cast, unless a bias wants it. The scales of
// inputs and weights are found forward and stay for backward, which casts the same values: one
// tensor has those of all linears (kFloat8Scales), so that a quarter of what casts read is not read
// again. Weights that are stored [in, out] (GPT-2) are turned forward and not backward. Partial
// maxima stand at the beginning of the workspace.
#pragma once

#include <string>

#include "models/decisions/precision.h"
#include "models/model_spec.h"

namespace plimsoll::models::decisions {

inline constexpr std::int64_t kFloat8Multiple = 16;  // of every length of a GEMM (cuBLASLt)
inline constexpr std::int64_t kFloat8Maxima = 1024;  // fp32, scratch of a cast

// Of a linear in kFloat8Scales, in fp32: its input's scale and factor, and 16 bytes on its
// weight's. Linears lie in the order of the layers and of their places; those of 16 bits, and of an
// input that another has cast, leave theirs empty.
inline constexpr std::int64_t kFloat8ScaleWords = 8, kFloat8WeightScale = 4;

// A layer's linear; as Accelerate's filter takes them, all but those of odd widths.
constexpr bool in_float8(const Regime& regime, std::int64_t in, std::int64_t out) {
  return regime.float8 && in % kFloat8Multiple == 0 && out % kFloat8Multiple == 0;
}

// Error{unsupported}, Error{bad_input}: what the runtime does not have of it.
inline void check_float8(const ModelSpec& model, const Strategy& s, const Batch& batch) {
  if (s.precision != Precision::fp8_mixed) return;
  const auto refuse_if = [](bool it_is, ErrorKind kind, const std::string& what) {
    check(!it_is, kind, [&] { return "--precision fp8-mixed on --stack plimsoll: " + what; });
  };
  refuse_if(s.lora || s.quantize, ErrorKind::unsupported,
            "adapters and packed weights are not modelled yet (bf16-mixed is)");
  for (const auto& block : model.blocks)
    for (const Module& module : block->modules)
      refuse_if(module.kind == ModuleClass::experts, ErrorKind::unsupported,
                "a mixture of experts is not modelled yet (bf16-mixed is)");
  refuse_if(s.fp8_recipe != Fp8Recipe::tensorwise, ErrorKind::bad_input,
            "--fp8-recipe is tensorwise, one scale for a tensor");
  refuse_if(s.fp8_all_gather, ErrorKind::bad_input,
            "--fp8-all-gather yes is of FSDP2 (--stack pytorch)");
  const std::int64_t tokens = checked_multiply(batch.seq_len, batch.micro_batch);
  refuse_if(tokens % kFloat8Multiple != 0, ErrorKind::bad_input,
            std::to_string(tokens) + " tokens in a micro-batch; cuBLASLt takes multiples of " +
                std::to_string(kFloat8Multiple));
}

}  // namespace plimsoll::models::decisions
