// Which module of a decoder layer a parameter belongs to: what planner and runtime both have an op
// for. A parameter of a layer that is not among them is refused by both.
#pragma once

#include <string>
#include <string_view>

#include "models/base/error.h"
#include "models/block.h"

namespace plimsoll::models::decisions {

// "model.layers.{}.mlp.up_proj.weight" -> "mlp.up_proj", "weight"; outside of layers the whole
// path.
struct ParameterName {
  std::string_view module, leaf;
};
constexpr ParameterName parameter_name(std::string_view name) {
  if (const auto layer = name.find("{}."); layer != std::string_view::npos)
    name.remove_prefix(layer + 3);
  const auto dot = name.rfind('.');
  if (dot == std::string_view::npos) return {name, ""};
  return {name.substr(0, dot), name.substr(dot + 1)};
}

// Outside of layers: the table of learned positions (GPT-2; OPT; BERT).
constexpr bool is_position_table(std::string_view module) {
  return module.ends_with("wpe") || module.ends_with("embed_positions") ||
         module.ends_with("position_embeddings");
}

// "model.layers.{}.mlp.experts.{}.up_proj.weight" -> "mlp.experts": whose matrices are stacked.
constexpr std::string_view stack_name(std::string_view name) {
  name = parameter_name(name).module;
  return name.substr(0, name.find(".{}"));
}

// "model.layers.{}.mlp.experts.{}.up_proj.weight" -> "mlp.experts.3.up_proj".
inline std::string expert_module(std::string_view name, std::int64_t expert) {
  const std::string_view module = parameter_name(name).module, stack = stack_name(name);
  return std::string(stack) + "." + std::to_string(expert) +
         std::string(module.substr(stack.size() + 3));
}

// Of "mlp.up_proj". Throws Error{unsupported} naming a module that no op reads.
inline const Module& layer_module(const Block& block, std::string_view name) {
  const Module* module = block.find(name);
  check(module != nullptr, ErrorKind::unsupported, [&] {
    return "a layer's module '" + std::string(name) +
           "' is in no modelled step: its parameters would be counted, and nothing that is "
           "computed with them";
  });
  return *module;
}

}  // namespace plimsoll::models::decisions
