// `strategy.lora` of the oracle's workloads (tools/oracle/README.md).
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <sstream>
#include <string>
#include <vector>

#include "models/run_names.h"
#include "models/run_spec.h"

namespace plimsoll::tests {

using nlohmann::json;

template <class Choice>
Choice choice(const json& text) {
  return *models::choice_from<Choice>(text.get<std::string>());
}
inline std::optional<models::Lora> lora_of(const json& lora) {
  if (!lora.is_object()) return std::nullopt;
  models::Lora out{.kind = choice<models::AdapterKind>(lora.value("kind", "lora")),
                   .rank = lora.value("rank", std::int64_t{8}),
                   .alpha = lora.value("alpha", 16.0),
                   .dropout = lora.value("dropout", 0.0),
                   .dtype = *dtype_from(lora["adapter_dtype"].get<std::string>()),
                   .bias = lora.value("lora_bias", false),
                   .dora = lora.value("use_dora", false)};
  const auto list = [&](const char* key) {
    std::vector<std::string> names;
    std::istringstream text(lora.value(key, ""));
    for (std::string name; std::getline(text, name, ',');) names.push_back(name);
    return names;
  };
  out.targets = list("targets");
  out.modules_to_save = list("modules_to_save");
  out.feedforward = list("feedforward");
  out.parameters = list("target_parameters");
  out.adapters = lora.value("adapters", std::int64_t{1});
  out.virtual_tokens = lora.value("virtual_tokens", std::int64_t{0});
  if (lora.contains("encoder_hidden") && lora["encoder_hidden"].is_number())
    out.encoder_hidden = lora["encoder_hidden"];
  return out;
}

}  // namespace plimsoll::tests
