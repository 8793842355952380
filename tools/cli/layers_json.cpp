#include "tools/cli/layers_json.h"

#include <nlohmann/json.hpp>

#include "models/json_reader.h"

namespace plimsoll::tools {

std::string config_with_layers(const std::string& config, std::int64_t layers) {
  nlohmann::json json = models::parse_json(config, "configuration");
  if (!json.is_object()) return config;
  // GPT-2's name first: where both stand, Transformers takes its own.
  const char* name = json.contains("n_layer") || json.value("model_type", "") == "gpt2"
                         ? "n_layer"
                         : "num_hidden_layers";
  json[name] = layers;
  const auto types = json.find("layer_types");
  if (types != json.end() && types->is_array() && types->size() > static_cast<std::size_t>(layers))
    types->erase(types->begin() + layers, types->end());
  return json.dump();
}

std::string config_with_dropout(const std::string& config, const models::DropoutKeys& keys,
                                double rate) {
  nlohmann::json json = models::parse_json(config, "configuration");
  nlohmann::json& part = keys.part.empty() ? json : json[keys.part];
  for (const std::string& name : keys.names) part[name] = rate;
  return json.dump();
}

std::string config_with_architecture(const std::string& config, const std::string& name) {
  nlohmann::json json = models::parse_json(config, "configuration");
  json["architectures"] = nlohmann::json::array({name});
  return json.dump();
}

}  // namespace plimsoll::tools
