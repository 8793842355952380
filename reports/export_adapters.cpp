#include "reports/export_adapters.h"

#include <fmt/format.h>

#include <set>
#include <string>

#include "models/lora.h"
#include "models/model_reader.h"
#include "models/prompt_adapters.h"
#include "models/storages.h"
#include "reports/export_code.h"
#include "reports/json_writer.h"

namespace plimsoll::reports {

using models::Workload;

namespace {

// The last parts of the adapted modules' names; PEFT knows "all-linear" itself, "attention" not.
std::string target_modules(const Workload& w) {
  const std::vector<std::string>& targets = w.strategy.lora->targets;
  if (targets == std::vector<std::string>{"all-linear"}) return "\"all-linear\"";
  const models::ModelSpec model =
      models::read_model(w.model_config, w.model_name, w.model_name, {});
  std::set<std::string> names;
  for (const models::LoraModule& module : lora_modules(model, *w.strategy.lora))
    names.insert(module.name.substr(module.name.rfind('.') + 1));
  const bool by_name = targets != std::vector<std::string>{"attention"};
  std::string out;
  const auto add = [&](const std::string& name) {
    out += (out.empty() ? "" : ", ") + reports::quoted(name);
  };
  if (by_name)
    for (const std::string& target : targets) add(target);
  else
    for (const std::string& name : names) add(name);
  return "[" + out + "]";
}

// "name=[…]" with a comma in front.
std::string list_argument(const char* name, const std::vector<std::string>& values) {
  std::string out;
  for (const std::string& value : values)
    out += (out.empty() ? fmt::format(",\n    {}=[", name) : ", ") + reports::quoted(value);
  return out.empty() ? out : out + "]";
}

// peft 0.21, utils/peft_types.py, TaskType.
const char* task_type(const Workload& w) {
  return classifies(w) ? "SEQ_CLS" : "CAUSAL_LM";
}

// peft 0.21, tuners/ia3/config.py. Without feed-forward modules PEFT takes its own.
std::string ia3(const Workload& w) {
  const models::Lora& lora = *w.strategy.lora;
  const std::string feedforward = lora.feedforward.empty()
                                      ? ",\n    feedforward_modules=[]"
                                      : list_argument("feedforward_modules", lora.feedforward);
  return fmt::format(
      "\npeft_config = IA3Config(\n"
      "    target_modules={}, task_type=\"{}\"{}{})\n"
      "model = get_peft_model(model, peft_config{})\n",
      target_modules(w), task_type(w), feedforward,
      list_argument("modules_to_save", lora.modules_to_save),
      lora.dtype == DType::fp32 ? "" : ", autocast_adapter_dtype=False");
}

// peft 0.21, tuners/vera/config.py.
std::string vera(const Workload& w) {
  const models::Lora& lora = *w.strategy.lora;
  return fmt::format(
      "\npeft_config = VeraConfig(\n"
      "    r={}, vera_dropout={}, target_modules={}, task_type=\"{}\"{})\n"
      "model = get_peft_model(model, peft_config{})\n",
      lora.rank, number_text(lora.dropout), target_modules(w), task_type(w),
      list_argument("modules_to_save", lora.modules_to_save),
      lora.dtype == DType::fp32 ? "" : ", autocast_adapter_dtype=False");
}

// peft 0.21, tuners/prompt_tuning/config.py, tuners/p_tuning/config.py,
// tuners/prefix_tuning/config.py.
std::string prompt(const Workload& w) {
  const models::Lora& lora = *w.strategy.lora;
  const bool projects = lora.kind == models::AdapterKind::prefix_tuning;
  const std::string encoder =
      lora.encoder_hidden == 0
          ? ""
          : fmt::format("{}, encoder_hidden_size={}", projects ? ", prefix_projection=True" : "",
                        lora.encoder_hidden);
  return fmt::format(
      "\npeft_config = {}(\n"
      "    num_virtual_tokens={}{}, task_type=\"{}\")\n"
      "model = get_peft_model(model, peft_config)\n",
      adapters_class(lora), lora.virtual_tokens, encoder, task_type(w));
}

// trl 0.24, trainer/utils.py, peft_module_casting_to_bf16.
std::string casting(const models::Strategy& s) {
  if (!models::casts_behind_kbit(s)) return "";
  return "for name, module in model.named_modules():\n"
         "    ends = (\"embed_tokens\", \"lm_head\", \"wte\", \"wpe\")\n"
         "    if any(end in name for end in ends) and hasattr(module, \"weight\"):\n"
         "        module.to(torch.bfloat16)\n";
}

}  // namespace

std::string adapters_code(const Workload& w) {
  if (!w.strategy.lora) return "";
  const models::Lora& lora = *w.strategy.lora;
  if (lora.kind == models::AdapterKind::ia3) return ia3(w);
  if (lora.kind == models::AdapterKind::vera) return vera(w);
  if (models::learns_prompt(lora.kind)) return prompt(w);
  std::string further = list_argument("modules_to_save", lora.modules_to_save);
  further += list_argument("target_parameters", lora.parameters);
  if (lora.bias) further += ", lora_bias=True";
  if (lora.dora) further += ", use_dora=True";
  const bool whole = lora.alpha == static_cast<double>(static_cast<std::int64_t>(lora.alpha));
  const std::string others =
      lora.adapters == 1
          ? ""
          : fmt::format(
                "for i in range(1, {}):\n    model.add_adapter(f\"adapter{{i}}\", "
                "peft_config{})\n",
                lora.adapters, lora.dtype == DType::fp32 ? "" : ", autocast_adapter_dtype=False");
  return fmt::format(
             "\npeft_config = LoraConfig(\n"
             "    r={}, lora_alpha={}, lora_dropout={}, target_modules={}, "
             "task_type=\"{}\"{})\n"
             "model = get_peft_model(model, peft_config{})\n",
             lora.rank,
             whole ? std::to_string(static_cast<std::int64_t>(lora.alpha))
                   : number_text(lora.alpha),
             number_text(lora.dropout), target_modules(w), task_type(w), further,
             lora.dtype == DType::fp32 ? "" : ", autocast_adapter_dtype=False") +
         others + casting(w.strategy);
}

bool classifies(const Workload& w) {
  return models::read_model(w.model_config, w.model_name, w.model_name)
      .architecture.ends_with("ForSequenceClassification");
}

const char* adapters_class(const models::Lora& lora) {
  switch (lora.kind) {
    case models::AdapterKind::lora:
      break;
    case models::AdapterKind::ia3:
      return "IA3Config";
    case models::AdapterKind::vera:
      return "VeraConfig";
    case models::AdapterKind::prompt_tuning:
      return "PromptTuningConfig";
    case models::AdapterKind::p_tuning:
      return "PromptEncoderConfig";
    case models::AdapterKind::prefix_tuning:
      return "PrefixTuningConfig";
  }
  return "LoraConfig";
}

}  // namespace plimsoll::reports
