#include "models/vector_adapters.h"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>
#include <utility>

#include "models/run_names.h"

namespace plimsoll::models {

namespace {

struct Defaults {
  std::string_view model_type;
  std::vector<std::string> targets, feedforward;
};

// peft 0.21, utils/constants.py, of the model types that are known here.
const std::vector<Defaults>& all_defaults() {
  static const std::vector<Defaults> all{
      {"bert", {"key", "value", "output.dense"}, {"output.dense"}},
      {"bloom", {"query_key_value", "mlp.dense_4h_to_h"}, {"mlp.dense_4h_to_h"}},
      {"falcon", {"query_key_value", "dense_4h_to_h"}, {"dense_4h_to_h"}},
      {"gemma", {"q_proj", "v_proj", "down_proj"}, {"down_proj"}},
      {"gemma2", {"q_proj", "v_proj", "down_proj"}, {"down_proj"}},
      {"gemma3_text", {"q_proj", "v_proj", "down_proj"}, {"down_proj"}},
      {"gpt2", {"c_attn", "mlp.c_proj"}, {"mlp.c_proj"}},
      {"gpt_bigcode", {"c_attn", "mlp.c_proj"}, {"mlp.c_proj"}},
      {"gpt_neo", {"q_proj", "v_proj", "c_proj"}, {"c_proj"}},
      {"gpt_neox", {"query_key_value", "dense_4h_to_h"}, {"dense_4h_to_h"}},
      {"gptj", {"q_proj", "v_proj", "fc_out"}, {"fc_out"}},
      {"llama", {"k_proj", "v_proj", "down_proj"}, {"down_proj"}},
      {"mistral", {"k_proj", "v_proj", "down_proj"}, {"down_proj"}},
      {"mixtral", {"k_proj", "v_proj", "w2"}, {"w2"}},
      {"opt", {"q_proj", "k_proj", "fc2"}, {"fc2"}},
      {"phi", {"q_proj", "v_proj", "fc2"}, {"fc2"}},
      {"qwen2", {"q_proj", "v_proj", "down_proj"}, {"down_proj"}},
      {"qwen3", {"q_proj", "v_proj", "down_proj"}, {"down_proj"}},
      {"roberta", {"key", "value", "output.dense"}, {"output.dense"}},
      {"t5", {"k", "v", "wo"}, {"wo"}},
  };
  return all;
}

const Defaults& defaults_of(const ModelSpec& model, const char* what, const char* option) {
  const auto found = std::ranges::find(all_defaults(), model.model_type, &Defaults::model_type);
  check(found != all_defaults().end(), ErrorKind::bad_input, [&] {
    return fmt::format("PEFT has no default {} of IA3 for model_type '{}': name them ({})", what,
                       model.model_type, option);
  });
  return *found;
}

// IA3Model._check_target_module_feedforward: by the end of the whole name.
bool is_feedforward(const Lora& lora, std::string_view module) {
  return std::ranges::any_of(lora.feedforward,
                             [&](const std::string& name) { return module.ends_with(name); });
}

LoraModule bare_module(const ModelSpec& model, std::size_t base, std::string name,
                       const char* kind) {
  const ParameterRow& row = model.parameters[base];
  check(row.shape.rank == 2 && row.module != ModuleKind::embedding, ErrorKind::bad_input, [&] {
    return fmt::format("--lora-targets {}: PEFT puts {} around linear modules alone", name, kind);
  });
  LoraModule module{.base = base, .name = std::move(name), .a = {}, .b = {}};
  module.in = row.shape.axes[row.transposed ? 0 : 1];
  module.out = row.shape.axes[row.transposed ? 1 : 0];
  return module;
}

void add_vector(LoraModule& module, const ParameterRow& base, const char* leaf, Shape shape,
                const std::vector<IndexRange>& ranges) {
  ParameterRow& vector = module.further.emplace_back(base);
  vector.name = "base_model.model." + module.name + leaf;
  vector.shape = shape;
  vector.ranges = ranges;
  vector.tied = vector.transposed = vector.no_gradient = false;
  vector.dtype.reset();
}

}  // namespace

std::vector<std::string> default_ia3_targets(const ModelSpec& model) {
  return defaults_of(model, "targets", "--lora-targets").targets;
}

std::vector<std::string> default_ia3_feedforward(const ModelSpec& model) {
  return defaults_of(model, "feed-forward modules", "--feedforward-modules").feedforward;
}

LoraModule ia3_module(const ModelSpec& model, std::size_t base, std::string name,
                      const std::vector<IndexRange>& ranges, const Lora& lora) {
  LoraModule module = bare_module(model, base, std::move(name), "IA3");
  module.scales_input = is_feedforward(lora, module.name);
  add_vector(module, model.parameters[base], ".ia3_l",
             module.scales_input ? Shape{1, module.in} : Shape{module.out, 1}, ranges);
  return module;
}

LoraModule vera_module(const ModelSpec& model, std::size_t base, std::string name,
                       const std::vector<IndexRange>& ranges, const Lora& lora) {
  LoraModule module = bare_module(model, base, std::move(name), "VeRA");
  const ParameterRow& row = model.parameters[base];
  add_vector(module, row, ".vera_lambda_b", Shape{module.out}, ranges);
  add_vector(module, row, ".vera_lambda_d", Shape{lora.rank}, ranges);
  return module;
}

void check_vectors(const Lora& lora) {
  check(lora.kind == AdapterKind::ia3 || lora.feedforward.empty(), ErrorKind::bad_input,
        "--feedforward-modules belongs to --adapter ia3");
  if (lora.kind == AdapterKind::lora) return;
  check(!lora.dora && !lora.bias, ErrorKind::bad_input, [&] {
    return fmt::format("--adapter {} has neither --use-dora nor --lora-bias", name_of(lora.kind));
  });
  check(lora.kind == AdapterKind::vera || lora.dropout == 0, ErrorKind::bad_input,
        "--adapter ia3 has no --lora-dropout");
}

}  // namespace plimsoll::models
