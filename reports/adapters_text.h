// Adapters in a line: "DoRA rank 16 with biases, adapters in fp32, copies of lm_head trained".
#pragma once

#include <fmt/format.h>

#include <string>
#include <utility>

#include "models/run_spec.h"

namespace plimsoll::reports {

inline std::string adapters_text(const models::Lora& lora) {
  std::string out = fmt::format("{} rank {}{}, adapters in {}", lora.dora ? "DoRA" : "LoRA",
                                lora.rank, lora.bias ? " with biases" : "", name_of(lora.dtype));
  const char* before = ", copies of ";
  for (const std::string& name : lora.modules_to_save) out += std::exchange(before, " and ") + name;
  return out + (lora.modules_to_save.empty() ? "" : " trained");
}

}  // namespace plimsoll::reports
