#include "models/prompt_adapters.h"

#include <fmt/format.h>

#include "models/run_names.h"

namespace plimsoll::models {

namespace {

void check_prompt(const Lora& lora) {
  const auto refuse_if = [&](bool it_is, const char* what) {
    check(!it_is, ErrorKind::bad_input,
          [&] { return fmt::format("--adapter {}: {}", name_of(lora.kind), what); });
  };
  refuse_if(lora.virtual_tokens < 1, "needs --virtual-tokens, at least 1");
  refuse_if(lora.kind == AdapterKind::p_tuning && lora.encoder_hidden < 1,
            "needs --encoder-hidden, at least 1");
  refuse_if(lora.kind == AdapterKind::prompt_tuning && lora.encoder_hidden > 0,
            "has no --encoder-hidden (p-tuning and prefix-tuning have)");
  refuse_if(lora.dora || lora.bias || lora.dropout > 0 || !lora.targets.empty() ||
                !lora.parameters.empty() || !lora.feedforward.empty(),
            "adapts no modules: --lora-targets and what else says how modules are adapted is not "
            "of it");
  refuse_if(!lora.modules_to_save.empty(), "with --modules-to-save is not modelled");
  refuse_if(lora.dtype != DType::fp32, "trains in fp32 (--adapter-dtype fp32)");
}

}  // namespace

std::int64_t virtual_tokens(const Strategy& strategy) {
  const bool ahead = strategy.lora && learns_prompt(strategy.lora->kind) &&
                     strategy.lora->kind != AdapterKind::prefix_tuning;
  return ahead ? strategy.lora->virtual_tokens : 0;
}

std::int64_t prefix_tokens(const Strategy& strategy) {
  const bool ahead = strategy.lora && strategy.lora->kind == AdapterKind::prefix_tuning;
  return ahead ? strategy.lora->virtual_tokens : 0;
}

std::vector<ParameterRow> prompt_parameters(const ModelSpec& model, const Lora& lora) {
  if (!learns_prompt(lora.kind)) return {};
  check_prompt(lora);
  check(model.decoder.has_value(), ErrorKind::unsupported, [&] {
    return fmt::format("--adapter {}: {} is no decoder whose step is modelled", name_of(lora.kind),
                       model.name);
  });
  const Decoder& d = *model.decoder;
  const bool prefix = lora.kind == AdapterKind::prefix_tuning;
  // peft/utils/other.py, _prepare_prompt_learning_config: as wide as a layer's keys.
  const std::int64_t hidden = prefix ? d.kv_width() : d.hidden;
  const std::int64_t inner = lora.encoder_hidden;
  std::vector<ParameterRow> rows;
  const auto add = [&](const char* name, Shape shape, ModuleKind module) {
    rows.push_back(
        {.name = std::string("prompt_encoder.default.") + name, .shape = shape, .module = module});
  };
  const std::int64_t all = prefix ? checked_multiply(2 * d.layers, hidden) : hidden;
  add("embedding.weight", {lora.virtual_tokens, prefix && inner == 0 ? all : hidden},
      ModuleKind::embedding);
  if (lora.kind == AdapterKind::prompt_tuning || (prefix && inner == 0)) return rows;
  if (prefix) {
    add("transform.0.weight", {inner, hidden}, ModuleKind::linear);
    add("transform.0.bias", {inner}, ModuleKind::linear);
    add("transform.2.weight", {all, inner}, ModuleKind::linear);
    add("transform.2.bias", {all}, ModuleKind::linear);
    return rows;
  }
  add("mlp_head.0.weight", {inner, hidden}, ModuleKind::linear);
  add("mlp_head.0.bias", {inner}, ModuleKind::linear);
  add("mlp_head.2.weight", {inner, inner}, ModuleKind::linear);
  add("mlp_head.2.bias", {inner}, ModuleKind::linear);
  add("mlp_head.4.weight", {hidden, inner}, ModuleKind::linear);
  add("mlp_head.4.bias", {hidden}, ModuleKind::linear);
  return rows;
}

Count prompt_parameter_count(const ModelSpec& model, const Lora& lora) {
  Count total;
  for (const ParameterRow& row : prompt_parameters(model, lora)) total += row.elements();
  return total;
}

}  // namespace plimsoll::models
