// Adapters in a line: "LoRA rank 16 on attention with biases, adapters in fp32, copies of lm_head
// trained".
#pragma once

#include <fmt/format.h>

#include <string>
#include <utility>
#include <vector>

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
  const bool vera = lora.kind == models::AdapterKind::vera;
  return fmt::format("{} rank {}", vera ? "VeRA" : lora.dora ? "DoRA" : "LoRA", lora.rank);
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
