// What else may be changed of a step: settings that fewer people have (see every_code.h).
#pragma once

#include <utility>
#include <vector>

#include "tests/planner/every_code.h"

namespace plimsoll::tests {

inline Change recomputes(models::RecomputeKind kind, std::int64_t layers = 1) {
  return [=](Strategy& s) { s.recompute = {kind, layers}; };
}
inline Change of_release(models::Release transformers) {
  return [=](Strategy& s) { s.transformers = transformers; };
}

inline std::vector<std::pair<const char*, Change>> rarer_changes() {
  using models::RecomputeKind;
  const Change lora = adapter(models::AdapterKind::lora);
  const Change unsloth = [](Strategy& s) { s.kernels = models::Kernels::unsloth; };
  const Change frozen = [](Strategy& s) { s.freeze = {"*embed*", "*wte*", "*norm*", "*ln_*"}; };
  const Change bf16 = [](Strategy& s) { s.precision = models::Precision::bf16; };
  const Change held = [](Strategy& s) { s.hold_outputs = true; };
  const Change stepped = [](Strategy& s) { s.optimizer_in_backward = true; };
  const Change old_torch = [](Strategy& s) { s.torch = {2, 4, 0}; };
  const Change fp16 = [](Strategy& s) { s.precision = models::Precision::fp16_mixed; };
  const Change math = [](Strategy& s) { s.attention = models::Attention::math; };
  const Change compiled = [](Strategy& s) { s.compile = models::Compile::block; };
  const Change reentrant = [](Strategy& s) { s.use_reentrant = true; };
  const Change tune = both(bf16, code(models::ModelCode::torchtune_0_6_1));
  const Change titan = code(models::ModelCode::torchtitan_0_2_2);
  const Change litgpt = code(models::ModelCode::litgpt_0_5_13);
  const Change full = recomputes(RecomputeKind::full);
  const Change chunked = kernels(models::Kernels::eager, models::Loss::chunked);
  const Change ops = [](Strategy& s) {
    s.recompute = {RecomputeKind::ops, 1, {models::kTorchtitanOps}};
  };
  return {{"selective", recomputes(RecomputeKind::selective)},
          {"every", recomputes(RecomputeKind::every, 2)},
          {"block", recomputes(RecomputeKind::block, 1)},
          {"nth", recomputes(RecomputeKind::nth, 2)},
          {"ops", ops},
          {"reentrant", both(full, reentrant)},
          {"selective eager", both(recomputes(RecomputeKind::selective),
                                   [](Strategy& s) { s.attention = models::Attention::eager; })},
          {"unsloth", both(both(lora, unsloth), [](Strategy& s) { s.loss = models::Loss::fused; })},
          {"frozen", frozen},
          {"frozen bf16", both(frozen, bf16)},
          {"frozen full", both(frozen, full)},
          {"held outputs", held},
          {"stepped in backward", both(bf16, stepped)},
          {"torch 2.4", old_torch},
          {"fp16", fp16},
          {"math", math},
          {"4.57", of_release({4, 57, 0})},
          {"4.51", of_release({4, 51, 0})},
          {"4.48", of_release({4, 48, 0})},
          {"5.0", of_release({5, 0, 0})},
          {"compiled full", both(compiled, full)},
          {"compiled bf16", both(compiled, bf16)},
          {"awq", packed("awq")},
          {"gptq", packed("gptq")},
          {"hqq", packed("hqq")},
          {"fp4", packed("fp4")},
          {"nf4 full", both(packed("nf4"), full)},
          {"nf4 kbit", [](Strategy& s) { packed("nf4")(s), s.quantize->kbit_prep = true; }},
          {"tune full", both(tune, full)},
          {"tune chunked", both(tune, chunked)},
          {"tune lora", both(tune, lora)},
          {"titan full", both(titan, full)},
          {"titan compiled", both(titan, compiled)},
          {"litgpt full", both(litgpt, full)},
          {"litgpt lora", both(litgpt, lora)},
          {"lora bf16", both(bf16, lora)},
          {"dora bf16", both(bf16, adapter(models::AdapterKind::lora, true))},
          {"float8 wide", float8(models::Fp8Recipe::rowwise_with_gw_hp)},
          {"float8 titan", both(titan, float8(models::Fp8Recipe::tensorwise))},
          {"liger lora", both(lora, kernels(models::Kernels::liger, models::Loss::fused))}};
}

inline std::vector<std::pair<const char*, Change>> all_changes() {
  std::vector<std::pair<const char*, Change>> all = changes();
  const auto more = rarer_changes();
  all.insert(all.end(), more.begin(), more.end());
  return all;
}

}  // namespace plimsoll::tests
