// Adapters in a line: "LoRA rank 16 on attention with biases, adapters in fp32, copies of lm_head
// trained".
#pragma once

#include <fmt/format.h>

#include <string>
#include <utility>
#include <vector>

#include "models/prompt_adapters.h"
#include "models/run_spec.h"

namespace plimsoll::reports {

// " on q_proj, v_proj"; nothing where all linear layers have adapters.
inline std::string targets_text(const std::vector<std::string>& targets) {
  constexpr std::size_t kMost = 4;
  if (targets.empty() || targets == std::vector<std::string>{"all-linear"}) return "";
  if (targets.size() > kMost) return " on " + std::to_string(targets.size()) + " named modules";
  std::string out = " on ";
  for (const std::string& target : targets) out += (out.size() > 4 ? ", " : "") + target;
  return out;
}

// "DoRA rank 16".
inline std::string adapters_kind(const models::Lora& lora) {
  if (lora.kind == models::AdapterKind::ia3) return "IA3";
  if (models::learns_prompt(lora.kind))
    return fmt::format("{} of {} virtual tokens",
                       lora.kind == models::AdapterKind::p_tuning        ? "P-tuning"
                       : lora.kind == models::AdapterKind::prefix_tuning ? "prefix tuning"
                                                                         : "prompt tuning",
                       lora.virtual_tokens);
  const bool vera = lora.kind == models::AdapterKind::vera;
  const std::string of = fmt::format("{} rank {}",
                                     vera        ? "VeRA"
                                     : lora.dora ? "DoRA"
                                                 : "LoRA",
                                     lora.rank);
  return lora.adapters == 1 ? of : fmt::format("{} ({} adapters, one trained)", of, lora.adapters);
}

inline std::string adapters_text(const models::Lora& lora) {
  std::vector<std::string> all = lora.targets;
  all.insert(all.end(), lora.parameters.begin(), lora.parameters.end());
  std::string out = fmt::format("{}{}{}, adapters in {}", adapters_kind(lora), targets_text(all),
                                lora.bias ? " with biases" : "", name_of(lora.dtype));
  const char* before = ", copies of ";
  for (const std::string& name : lora.modules_to_save) out += std::exchange(before, " and ") + name;
  return out + (lora.modules_to_save.empty() ? "" : " trained");
}

}  // namespace plimsoll::reports
