// What a module with parameters computes.
#pragma once

#include <cstdint>

namespace plimsoll::models {

// Norms of root mean squares multiply the normalized values with the weight:
//   rms_norm in the input's dtype (Llama);
//   rms_norm_fp32 in fp32, before the cast back (OLMo 2);
//   rms_norm_one_plus likewise, with 1 + weight (Gemma);
//   rms_norm_inline as rms_norm, in one expression, whose values no name holds (torchtitan, 2024);
//   rms_norm_fused in a kernel (torch.nn.RMSNorm);
//   rms_norm_composite as torch.rms_norm of x in fp32 with a weight in another dtype, which runs
//     as operations of its own;
//   rms_norm_product as rms_norm_fp32, of x · x instead of a power (LitGPT);
//   rms_norm_product_low as rms_norm, of x · x (LitGPT, April 2024).
enum class ModuleClass : std::uint8_t {
  linear,
  conv1d,
  rms_norm,
  rms_norm_fp32,
  rms_norm_one_plus,
  rms_norm_inline,
  rms_norm_fused,
  rms_norm_composite,
  rms_norm_product,
  rms_norm_product_low,
  layer_norm,
  experts,  // gated MLPs stacked: gate_up_proj [experts, 2·out, in], down_proj [experts, in, out]
  sinks,  // one learned score of each head, beside those of the keys (GPT-OSS); in, out: heads
};
constexpr bool is_norm(ModuleClass c) {
  return c != ModuleClass::linear && c != ModuleClass::conv1d && c != ModuleClass::experts &&
         c != ModuleClass::sinks;
}

}  // namespace plimsoll::models
