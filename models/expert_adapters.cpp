#include "models/expert_adapters.h"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>

#include "models/base/utf8.h"

namespace plimsoll::models {

namespace {

// "model.layers.{}.mlp.experts.{}.up_proj.weight" -> "model.layers.{}.mlp.experts". Checkpoints
// call Mixtral's MLP as it was called before Transformers 5.
std::string stack_of(const ParameterRow& row) {
  constexpr std::string_view kBefore5 = ".block_sparse_moe.";
  std::string name = row.name.substr(0, row.name.rfind(".{}"));
  const std::size_t old = name.find(kBefore5);
  if (old != std::string::npos) name.replace(old, kBefore5.size(), ".mlp.");
  return name;
}

bool names(std::string_view parameter, const std::string& target) {
  return parameter == target || parameter.ends_with("." + target);
}

LoraModule adapt(const ModelSpec& model, std::size_t base, const std::string& name,
                 std::int64_t rank) {
  const ParameterRow& row = model.parameters[base];
  const std::int64_t all = checked_multiply(rank, row.ranges.back().count);
  const bool gate_up = row.stacked == kGateUp;
  const std::int64_t out = row.shape.axes[0] * (gate_up ? 2 : 1), in = row.shape.axes[1];
  LoraModule module{.base = base, .name = name, .a = row, .b = row, .stacked = row.stacked};
  module.a.shape = {all, in};
  module.b.shape = {out, all};
  for (ParameterRow* matrix : {&module.a, &module.b}) {
    matrix->ranges.pop_back();
    matrix->stacked = {};
    matrix->active = 0;
    matrix->dtype.reset();
  }
  return module;
}

// Where both parameters have adapters the first one's wrapper stands inside of the other's.
void name_matrices(std::vector<LoraModule>& modules) {
  for (LoraModule& module : modules) {
    const bool inner = std::ranges::any_of(modules, [&](const LoraModule& other) {
      return module.stacked == kGateUp && other.stacked == kDown &&
             other.a.ranges == module.a.ranges;
    });
    const std::string stack = module.name.substr(0, module.name.rfind('.'));
    const std::string prefix = "base_model.model." + stack + (inner ? ".base_layer" : "");
    module.a.name = prefix + ".lora_A.weight";
    module.b.name = prefix + ".lora_B.weight";
  }
}

void check_beside(const Lora& lora) {
  const char* const other = lora.kind != AdapterKind::lora ? "--adapter other than lora"
                            : lora.dropout > 0             ? "--lora-dropout"
                            : lora.bias                    ? "--lora-bias yes"
                            : lora.dora                    ? "--use-dora yes"
                                                           : nullptr;
  check(other == nullptr, ErrorKind::bad_input, [&] {
    return fmt::format("--target-parameters with {}: PEFT refuses it (lora.ParamWrapper)", other);
  });
}

// GPT-OSS's stand as [experts, in, out], beside a bias of each.
void check_no_fused(const ModelSpec& model, const Lora& lora) {
  for (const ParameterRow& row : model.parameters)
    for (const std::string& target : lora.parameters)
      check(!row.fused_experts || !names(row.name, target), ErrorKind::unsupported, [&] {
        return fmt::format(
            "--target-parameters {}: adapters on the experts of {} are not modelled "
            "yet (--lora-targets attention is)",
            shortened(target), model.name);
      });
}

}  // namespace

std::vector<LoraModule> expert_adapters(const ModelSpec& model, const Lora& lora) {
  if (lora.parameters.empty()) return {};
  check_beside(lora);
  check_no_fused(model, lora);
  std::vector<bool> found(lora.parameters.size(), false);
  std::vector<LoraModule> modules;
  for (std::size_t base = 0; base < model.parameters.size(); ++base) {
    const ParameterRow& row = model.parameters[base];
    if (row.stacked.empty()) continue;
    const std::string name = stack_of(row) + "." + std::string(row.stacked);
    bool named = false;
    for (std::size_t i = 0; i < found.size(); ++i)
      if (names(name, lora.parameters[i])) named = found[i] = true;
    const auto same = [&](const LoraModule& other) {
      return other.name == name && other.a.ranges.front() == row.ranges.front();
    };
    if (named && std::ranges::none_of(modules, same))
      modules.push_back(adapt(model, base, name, lora.rank));
  }
  for (std::size_t i = 0; i < found.size(); ++i)
    check(found[i], ErrorKind::unsupported, [&] {
      return fmt::format(
          "--target-parameters {}: names no stacked experts of {} (mlp.experts.gate_up_proj, "
          "mlp.experts.down_proj); adapters on other parameters are not modelled",
          shortened(lora.parameters[i]), model.name);
    });
  name_matrices(modules);
  return modules;
}

}  // namespace plimsoll::models
