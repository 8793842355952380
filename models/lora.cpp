#include "models/lora.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <optional>
#include <set>
#include <utility>

#include "models/base/nearest.h"
#include "models/base/utf8.h"
#include "models/expert_adapters.h"
#include "models/prompt_adapters.h"
#include "models/table/family.h"
#include "models/vector_adapters.h"

namespace plimsoll::models {

namespace {
std::vector<std::string_view> segments_of(std::string_view name) {
  std::vector<std::string_view> segments;
  for (std::size_t from = 0; from <= name.size();) {
    const std::size_t dot = std::min(name.find('.', from), name.size());
    segments.push_back(name.substr(from, dot - from));
    from = dot + 1;
  }
  return segments;
}

// Name of the module that owns a weight; nothing for biases and bare parameters.
std::optional<std::string_view> module_of(const ParameterRow& row) {
  constexpr std::string_view suffix = ".weight";
  if (!row.name.ends_with(suffix)) return std::nullopt;
  return std::string_view(row.name).substr(0, row.name.size() - suffix.size());
}

bool adaptable(const ParameterRow& row) {
  switch (row.module) {
    case ModuleKind::linear:
    case ModuleKind::expert:
    case ModuleKind::head:
    case ModuleKind::embedding:
      return row.shape.rank == 2;
    case ModuleKind::conv:
      return row.shape.rank >= 3;
    default:
      return false;
  }
}

// To PEFT: a torch.nn.Linear or a Conv1D.
bool is_linear(const ParameterRow& row) {
  if (row.bare || !row.stacked.empty()) return false;
  return row.module == ModuleKind::linear || row.module == ModuleKind::expert;
}

bool inside_attention(std::string_view module) {
  for (const std::string_view segment : segments_of(module)) {
    std::string lower(segment);
    for (char& c : lower) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
    if (lower.find("attn") != std::string::npos || lower.find("attention") != std::string::npos)
      return true;
  }
  return false;
}

std::optional<std::int64_t> number_of(std::string_view text) {
  std::int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

// Does `target` name this module, whole or by its last parts? A number in the target picks one
// instance of the row: its range shrinks to that number.
bool matches(std::string_view module, std::string_view target, std::vector<IndexRange>& ranges) {
  const std::vector<std::string_view> have = segments_of(module), want = segments_of(target);
  if (want.size() > have.size()) return false;
  std::size_t range = ranges.size();
  for (std::size_t i = 1; i <= want.size(); ++i) {
    const std::string_view part = have[have.size() - i], wanted = want[want.size() - i];
    if (part != "{}") {
      if (part != wanted) return false;
      continue;
    }
    IndexRange& all = ranges[--range];
    const std::optional<std::int64_t> index = number_of(wanted);
    if (!index || *index < all.first || (*index - all.first) % all.step != 0 ||
        (*index - all.first) / all.step >= all.count)
      return false;
    all = {.first = *index, .count = 1, .step = 1};
  }
  return true;
}

LoraModule adapt(const ModelSpec& model, std::size_t base, const std::vector<IndexRange>& ranges,
                 const Lora& lora) {
  const std::int64_t rank = lora.rank;
  const ParameterRow& row = model.parameters[base];
  if (lora.kind == AdapterKind::ia3)
    return ia3_module(model, base, std::string(*module_of(row)), ranges, lora);
  if (lora.kind == AdapterKind::vera)
    return vera_module(model, base, std::string(*module_of(row)), ranges, lora);
  LoraModule module{.base = base, .name = std::string(*module_of(row)), .a = row, .b = row};
  // An embedding's rows are what goes in; GPT-2's Conv1D stores [in, out].
  const bool rows_go_in = row.transposed || row.module == ModuleKind::embedding;
  const std::int64_t out = row.shape.axes[rows_go_in ? 1 : 0];
  Shape a = row.shape, b = row.shape;
  a.axes[0] = rank;
  a.axes[1] = row.shape.axes[rows_go_in ? 0 : 1];
  for (std::size_t i = 0; i < b.axes.size(); ++i) b.axes[i] = std::cmp_less(i, b.rank) ? 1 : 0;
  b.axes[0] = out;
  b.axes[1] = rank;
  const bool embedding = row.module == ModuleKind::embedding;
  const std::string prefix = "base_model.model." + module.name;
  module.a.name = prefix + (embedding ? ".lora_embedding_A" : ".lora_A.weight");
  module.b.name = prefix + (embedding ? ".lora_embedding_B" : ".lora_B.weight");
  module.a.shape = a;
  module.b.shape = b;
  for (ParameterRow* added : {&module.a, &module.b}) {
    added->ranges = ranges;
    added->tied = added->transposed = added->no_gradient = false;
    added->dtype.reset();
  }
  const auto vector = [&](const char* name) {
    module.further.push_back(module.b);
    module.further.back().name = prefix + name;
    module.further.back().shape = {out};
  };
  if (lora.bias) vector(".lora_B.bias");
  if (lora.dora) vector(".lora_magnitude_vector");
  return module;
}

[[noreturn]] void refuse_target(const ModelSpec& model, const std::string& target) {
  std::set<std::string_view> last_parts;
  for (const ParameterRow& row : model.parameters)
    if (const auto module = module_of(row); module && adaptable(row))
      last_parts.insert(segments_of(*module).back());
  const std::vector<std::string_view> candidates(last_parts.begin(), last_parts.end());
  const std::string near = nearest(segments_of(target).back(), candidates);
  std::string known;
  for (const std::string_view part : candidates) known.append(known.empty() ? "" : ", ") += part;
  fail(ErrorKind::bad_input,
       fmt::format("LoRA target '{}' names no module of {}{} (all-linear, attention, or of: {})",
                   shortened(target), model.name,
                   near.empty() ? "" : fmt::format("; did you mean '{}'?", near), known));
}

// peft/utils/transformers_weight_conversion.py, _convert_peft_config_moe (0.21 with Transformers
// 5): the stacked experts are among them. Their adapters are folded into a whole weight
// (lora.ParamWrapper).
bool has_stacked_experts(const ModelSpec& model) {
  return std::ranges::any_of(model.parameters,
                             [](const ParameterRow& row) { return !row.stacked.empty(); });
}
void refuse_stacked_experts(const ModelSpec& model, const std::vector<std::string>& targets) {
  check(!has_stacked_experts(model) || std::ranges::find(targets, "all-linear") == targets.end(),
        ErrorKind::unsupported, [&] {
          return fmt::format(
              "--lora-targets all-linear: PEFT adapts the routers of {} too, which is not modelled "
              "yet; name what is outside of them (attention, or q_proj,v_proj), and experts by "
              "--target-parameters or, before Transformers 5, as linear modules",
              model.name);
        });
}

// A table that a tied row shares.
bool is_shared(const ModelSpec& model, const ParameterRow& row) {
  return std::ranges::any_of(model.parameters, [&](const ParameterRow& other) {
    return other.tied && &tied_table(model, other) == &row;
  });
}

// The instances of a row that the target adapts, if any.
std::optional<std::vector<IndexRange>> targeted(const ParameterRow& row,
                                                const std::string& target) {
  const auto module = module_of(row);
  if (!module || !adaptable(row)) return std::nullopt;
  std::vector<IndexRange> ranges = row.ranges;
  if (target == "all-linear" || target == "attention") {
    if (!is_linear(row) || (target == "attention" && !inside_attention(*module)))
      return std::nullopt;
    return ranges;
  }
  if (!matches(*module, target, ranges)) return std::nullopt;
  return ranges;
}
}  // namespace

std::vector<std::string> default_lora_targets(const ModelSpec& model) {
  const families::FamilyEntry* entry = families::find_family(model.model_type);
  std::vector<std::string> targets;
  if (entry != nullptr)
    for (const std::string_view target : entry->make().lora_targets) targets.emplace_back(target);
  check(!targets.empty(), ErrorKind::bad_input, [&] {
    return fmt::format(
        "PEFT has no default LoRA targets for model_type '{}': name them (all-linear, attention, "
        "or module names)",
        model.model_type);
  });
  return targets;
}

const char* usual_lora_target(const ModelSpec& model) {
  return has_stacked_experts(model) ? "attention" : "all-linear";
}

std::vector<std::string> usual_modules_to_save(const ModelSpec& model) {
  if (!model.decoder || model.decoder->labels == 0) return {};
  return {model.decoder->pooled ? "classifier" : "score"};
}

std::vector<LoraCandidate> lora_candidates(const ModelSpec& model) {
  std::vector<LoraCandidate> out;
  for (const ParameterRow& row : model.parameters)
    if (const auto module = module_of(row); module && !row.bare && row.stacked.empty())
      out.push_back({std::string(*module), row.ranges, adaptable(row), is_linear(row)});
  return out;
}

std::vector<const ParameterRow*> LoraModule::trained() const {
  std::vector<const ParameterRow*> rows;
  for (const ParameterRow* row : {&a, &b})
    if (!row->name.empty()) rows.push_back(row);
  for (const ParameterRow& row : further) rows.push_back(&row);
  return rows;
}

std::vector<LoraModule> lora_modules(const ModelSpec& model, const Lora& lora) {
  if (learns_prompt(lora.kind)) return {};
  check_vectors(lora);
  check(lora.adapters == 1 || (lora.kind == AdapterKind::lora && !lora.dora &&
                               lora.modules_to_save.empty() && lora.parameters.empty()),
        ErrorKind::unsupported,
        "--adapters is modelled with LoRA alone, without --use-dora, --modules-to-save and "
        "--target-parameters");
  check(lora.rank >= 1, ErrorKind::bad_input,
        [&] { return fmt::format("LoRA rank {}: at least 1 is needed", lora.rank); });
  check(!lora.dora || !lora.bias, ErrorKind::bad_input,
        "--use-dora yes with --lora-bias yes: PEFT refuses it (LoraConfig.__post_init__)");
  const bool unnamed = lora.targets.empty() && lora.parameters.empty();
  const std::vector<std::string> targets = unnamed ? default_lora_targets(model) : lora.targets;
  refuse_stacked_experts(model, targets);
  std::vector<bool> found(targets.size(), false);
  std::vector<LoraModule> modules;
  for (std::size_t base = 0; base < model.parameters.size(); ++base) {
    const ParameterRow& row = model.parameters[base];
    std::vector<std::vector<IndexRange>> chosen;
    for (std::size_t t = 0; t < targets.size(); ++t) {
      const auto ranges = targeted(row, targets[t]);
      if (!ranges) continue;
      found[t] = true;
      if (*ranges == row.ranges) chosen.assign(1, row.ranges);
      const bool all = !chosen.empty() && chosen.front() == row.ranges;
      if (!all && std::ranges::find(chosen, *ranges) == chosen.end()) chosen.push_back(*ranges);
    }
    for (const auto& ranges : chosen) modules.push_back(adapt(model, base, ranges, lora));
  }
  for (std::size_t t = 0; t < targets.size(); ++t)
    if (!found[t]) refuse_target(model, targets[t]);
  for (LoraModule& module : expert_adapters(model, lora)) modules.push_back(std::move(module));
  check_saved(model, lora, modules);
  return modules;
}

const char* further_option(const Lora& lora) {
  if (lora.kind == AdapterKind::ia3) return "--adapter ia3";
  if (lora.kind == AdapterKind::vera) return "--adapter vera";
  if (lora.kind == AdapterKind::prompt_tuning) return "--adapter prompt-tuning";
  if (lora.kind == AdapterKind::p_tuning) return "--adapter p-tuning";
  if (lora.kind == AdapterKind::prefix_tuning) return "--adapter prefix-tuning";
  if (!lora.modules_to_save.empty()) return "--modules-to-save";
  if (!lora.parameters.empty()) return "--target-parameters";
  if (lora.adapters > 1) return "--adapters";
  return lora.dora ? "--use-dora" : lora.bias ? "--lora-bias" : nullptr;
}

bool is_saved(const Lora& lora, const ParameterRow& row) {
  std::string_view module = row.name;
  module = module.substr(0, std::min(module.rfind('.'), module.size()));
  return std::ranges::any_of(lora.modules_to_save,
                             [&](const std::string& name) { return module.ends_with(name); });
}

void check_saved(const ModelSpec& model, const Lora& lora, const std::vector<LoraModule>& modules) {
  const auto refuse = [](ErrorKind kind, const std::string& name, const std::string& why) {
    fail(kind, "--modules-to-save " + shortened(name) + ": " + why);
  };
  for (const std::string& name : lora.modules_to_save) {
    const Lora alone{.modules_to_save = {name}};
    bool found = false;
    for (std::size_t i = 0; i < model.parameters.size(); ++i) {
      const ParameterRow& row = model.parameters[i];
      if (!is_saved(alone, row)) continue;
      found = true;
      if (row.tied || is_shared(model, row))
        refuse(ErrorKind::unsupported, name,
               "head and embedding share one table; which of both a copy is torn from is not "
               "modelled yet");
      if (row.module != ModuleKind::embedding && row.module != ModuleKind::head &&
          row.module != ModuleKind::norm)
        refuse(ErrorKind::unsupported, name,
               row.name + ": copies of embeddings, norms and the head are modelled");
      if (std::ranges::find(modules, i, &LoraModule::base) != modules.end())
        refuse(ErrorKind::bad_input, name, row.name + " is one of --lora-targets too");
    }
    if (!found)
      refuse(ErrorKind::bad_input, name,
             "names no module of " + model.name + " (embed_tokens, lm_head, norm, ...)");
  }
}

Count lora_parameter_count(const std::vector<LoraModule>& modules) {
  Count total;
  for (const LoraModule& module : modules)
    for (const ParameterRow* row : module.trained()) total += row->elements();
  return total;
}

}  // namespace plimsoll::models
