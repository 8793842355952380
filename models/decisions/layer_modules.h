// Which module of a decoder layer a parameter belongs to: what planner and runtime both have an op
// for. A parameter of a layer that is not among them is refused by both.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "models/base/error.h"

namespace plimsoll::models::decisions {

// Linear layers first. GPT-2's c_attn is q, its c_fc is up, its two c_proj are o and down.
enum class LayerModule : std::uint8_t {
  q,
  k,
  v,
  o,
  gate,
  up,
  down,
  input_norm,
  post_norm,
  q_norm,
  k_norm,
};
inline constexpr std::size_t kLayerLinears = 7, kLayerNorms = 4;

constexpr bool is_linear(LayerModule module) {
  return static_cast<std::size_t>(module) < kLayerLinears;
}
// Among the linear layers, or among the norms.
constexpr std::size_t place_of(LayerModule module) {
  const auto at = static_cast<std::size_t>(module);
  return is_linear(module) ? at : at - kLayerLinears;
}

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

// "model.layers.{}.mlp.experts.{}.up_proj.weight" -> "mlp.experts": whose matrices are stacked.
constexpr std::string_view stack_name(std::string_view name) {
  name = parameter_name(name).module;
  return name.substr(0, name.find(".{}"));
}

// As the checkpoints of Llama-like models and of GPT-2 call them.
struct LayerModuleName {
  std::string_view name;
  LayerModule module;
};
inline constexpr std::array<LayerModuleName, 17> kLayerModules{{
    {"self_attn.q_proj", LayerModule::q},
    {"self_attn.k_proj", LayerModule::k},
    {"self_attn.v_proj", LayerModule::v},
    {"self_attn.o_proj", LayerModule::o},
    {"mlp.gate_proj", LayerModule::gate},
    {"mlp.up_proj", LayerModule::up},
    {"mlp.down_proj", LayerModule::down},
    {"attn.c_attn", LayerModule::q},
    {"attn.c_proj", LayerModule::o},
    {"mlp.c_fc", LayerModule::up},
    {"mlp.c_proj", LayerModule::down},
    {"input_layernorm", LayerModule::input_norm},
    {"post_attention_layernorm", LayerModule::post_norm},
    {"self_attn.q_norm", LayerModule::q_norm},
    {"self_attn.k_norm", LayerModule::k_norm},
    {"ln_1", LayerModule::input_norm},
    {"ln_2", LayerModule::post_norm},
}};

// Of "mlp.up_proj". Throws Error{unsupported} naming a module that no op reads.
inline LayerModule layer_module(std::string_view module) {
  for (const LayerModuleName& known : kLayerModules)
    if (known.name == module) return known.module;
  fail(ErrorKind::unsupported, "a layer's module '" + std::string(module) +
                                   "' is in no modelled step: its parameters would be counted, and "
                                   "nothing that is computed with them");
}

}  // namespace plimsoll::models::decisions
