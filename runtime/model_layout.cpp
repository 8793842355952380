#include "runtime/model_layout.h"

#include <algorithm>
#include <array>
#include <string_view>

#include "models/trainable.h"

namespace plimsoll::runtime {

using models::ModelSpec;
using models::ModuleKind;
using models::ParameterRow;

namespace {

struct LinearName {
  std::string_view module;
  LinearSlots LayerSlots::*slots;
};
struct NormName {
  std::string_view module;
  NormSlots LayerSlots::*slots;
};

// As the checkpoints of Llama-like models and of GPT-2 call the modules of a layer.
constexpr std::array<LinearName, 11> kLinears{{{"self_attn.q_proj", &LayerSlots::q},
                                               {"self_attn.k_proj", &LayerSlots::k},
                                               {"self_attn.v_proj", &LayerSlots::v},
                                               {"self_attn.o_proj", &LayerSlots::o},
                                               {"mlp.gate_proj", &LayerSlots::gate},
                                               {"mlp.up_proj", &LayerSlots::up},
                                               {"mlp.down_proj", &LayerSlots::down},
                                               {"attn.c_attn", &LayerSlots::q},
                                               {"attn.c_proj", &LayerSlots::o},
                                               {"mlp.c_fc", &LayerSlots::up},
                                               {"mlp.c_proj", &LayerSlots::down}}};
constexpr std::array<NormName, 6> kNorms{{{"input_layernorm", &LayerSlots::input_norm},
                                          {"post_attention_layernorm", &LayerSlots::post_norm},
                                          {"ln_1", &LayerSlots::input_norm},
                                          {"ln_2", &LayerSlots::post_norm},
                                          {"self_attn.q_norm", &LayerSlots::q_norm},
                                          {"self_attn.k_norm", &LayerSlots::k_norm}}};

Extents extents(const models::Shape& shape) {
  Extents lengths;
  lengths.rank = shape.rank;
  lengths.axes = shape.axes;
  return lengths;
}

// "model.layers.{}.mlp.up_proj.weight" -> "mlp.up_proj", "weight".
struct RowName {
  std::string_view module, leaf;
};
RowName row_name(std::string_view name) {
  if (const auto layer = name.find("{}."); layer != std::string_view::npos)
    name.remove_prefix(layer + 3);
  const auto dot = name.rfind('.');
  if (dot == std::string_view::npos) return {name, ""};
  return {name.substr(0, dot), name.substr(dot + 1)};
}

std::size_t append(std::vector<ModelParameter>& list, ModelParameter parameter) {
  list.push_back(std::move(parameter));
  return list.size() - 1;
}

LinearSlots* linear_of(LayerSlots& slots, std::string_view module) {
  for (const LinearName& linear : kLinears)
    if (linear.module == module) return &(slots.*linear.slots);
  return nullptr;
}

void add_to_layer(LayerLayout& layer, const ParameterRow& row, ModelParameter parameter) {
  const RowName name = row_name(row.name);
  const std::size_t index = append(layer.parameters, std::move(parameter));
  const bool bias = name.leaf == "bias";
  if (LinearSlots* linear = linear_of(layer.slots, name.module)) {
    (bias ? linear->bias : linear->weight) = index;
    if (!bias) linear->transposed = row.transposed;
    return;
  }
  for (const NormName& norm : kNorms) {
    if (norm.module != name.module) continue;
    NormSlots& slots = layer.slots.*norm.slots;
    (bias ? slots.bias : slots.weight) = index;
    return;
  }
  fail(ErrorKind::unsupported, "no module of our own takes " + row.name);
}

void add_outside_layers(ModelLayout& layout, const ParameterRow& row, ModelParameter parameter) {
  const RowName name = row_name(row.name);
  if (row.module == ModuleKind::head) {
    if (!layout.tied) layout.head = append(layout.tail, std::move(parameter));
  } else if (row.module == ModuleKind::norm) {
    (name.leaf == "bias" ? layout.final_norm.bias : layout.final_norm.weight) =
        append(layout.tail, std::move(parameter));
  } else if (name.module.ends_with("wpe")) {
    layout.position_table = append(layout.embedding, std::move(parameter));
  } else if (layout.tied) {
    layout.token_table = layout.head = append(layout.tail, std::move(parameter));
  } else {
    layout.token_table = append(layout.embedding, std::move(parameter));
  }
}

void add_adapters(ModelLayout& layout, const ModelSpec& model, const models::Lora& lora) {
  for (const models::LoraModule& module : models::lora_modules(model, lora)) {
    const ParameterRow& base = model.parameters[module.base];
    check(!base.ranges.empty(), ErrorKind::unsupported, [&] {
      return "--lora-targets " + module.name + ": adapters outside of layers are not supported";
    });
    const models::IndexRange& range = base.ranges.front();
    for (std::int64_t i = 0; i < range.count; ++i) {
      const std::int64_t at = range.first + i * range.step;
      LayerLayout& layer = layout.layers[static_cast<std::size_t>(at)];
      LinearSlots* linear = linear_of(layer.slots, row_name(base.name).module);
      check(linear != nullptr, ErrorKind::unsupported,
            [&] { return "--lora-targets " + module.name + " is no product of a layer"; });
      const auto add = [&](const ParameterRow& row) {
        return append(layer.parameters,
                      {models::expand(row.name, {at}), extents(row.shape), true, true});
      };
      linear->lora_a = add(module.a);
      linear->lora_b = add(module.b);
    }
  }
}

bool any_trains(const std::vector<ModelParameter>& list) {
  return std::any_of(list.begin(), list.end(), [](const ModelParameter& p) { return p.trained; });
}

}  // namespace

bool LayerLayout::trains() const {
  return any_trains(parameters);
}

bool ModelLayout::trains_embedding() const {
  return any_trains(embedding) || (tied && token_table && tail[*token_table].trained);
}

ModelLayout layout_of(const ModelSpec& model, const models::Strategy& strategy) {
  check(model.decoder.has_value(), ErrorKind::unsupported, [&] {
    return model.name + ": our own runtime does not train model_type '" + model.model_type + "'" +
           (model.no_decoder.empty() ? "" : " (" + model.no_decoder + ")");
  });
  ModelLayout layout;
  layout.tied = model.decoder->tied_head;
  layout.layers.resize(static_cast<std::size_t>(model.decoder->layers));
  // Adapters freeze the base model, but for what --train names.
  const bool frozen = strategy.lora.has_value() && strategy.train.empty();
  bool any = strategy.lora.has_value();
  for (const models::TrainableRow& entry :
       models::trainable_rows(model, strategy.freeze, strategy.train)) {
    const ParameterRow& row = entry.row;
    const bool trained = entry.trainable && !frozen;
    any = any || trained;
    if (row.ranges.empty()) {
      add_outside_layers(layout, row, {row.name, extents(row.shape), trained, false});
      continue;
    }
    const models::IndexRange& range = row.ranges.front();
    for (std::int64_t i = 0; i < range.count; ++i) {
      const std::int64_t at = range.first + i * range.step;
      add_to_layer(layout.layers[static_cast<std::size_t>(at)], row,
                   {models::expand(row.name, {at}), extents(row.shape), trained, false});
    }
  }
  check(any, ErrorKind::bad_input, "--freeze leaves nothing to train");
  if (strategy.lora) add_adapters(layout, model, *strategy.lora);
  return layout;
}

Parameter attach(ParameterStore& store, const std::vector<ModelParameter>& list, Slot slot) {
  return slot ? Parameter(store, *slot, list[*slot].trained) : Parameter();
}

NormParameters attach(ParameterStore& store, const std::vector<ModelParameter>& list,
                      const NormSlots& slots) {
  NormParameters norm{attach(store, list, slots.weight), attach(store, list, slots.bias), 0};
  if (slots.weight) norm.width = list[*slots.weight].shape[0];
  return norm;
}

namespace {

LinearParameters attach_linear(ParameterStore& store, const std::vector<ModelParameter>& list,
                               const LinearSlots& slots, const std::optional<models::Lora>& lora) {
  LinearParameters linear;
  if (!slots.weight) return linear;
  linear.weight = attach(store, list, slots.weight);
  linear.bias = attach(store, list, slots.bias);
  linear.transposed = slots.transposed;
  const Extents& shape = list[*slots.weight].shape;
  linear.out = shape[slots.transposed ? 1 : 0];
  linear.in = shape[slots.transposed ? 0 : 1];
  if (!slots.lora_a || !lora) return linear;
  linear.lora_a = attach(store, list, slots.lora_a);
  linear.lora_b = attach(store, list, slots.lora_b);
  linear.lora_rank = list[*slots.lora_a].shape[0];
  linear.lora_scale = static_cast<float>(lora->alpha / static_cast<double>(linear.lora_rank));
  linear.lora_dropout = static_cast<float>(lora->dropout);
  return linear;
}

}  // namespace

LayerParameters attach(ParameterStore& store, const LayerLayout& layer,
                       const std::optional<models::Lora>& lora) {
  LayerParameters bound;
  const auto norm = [&](const NormSlots& slots) { return attach(store, layer.parameters, slots); };
  const auto linear = [&](const LinearSlots& slots) {
    return attach_linear(store, layer.parameters, slots, lora);
  };
  const LayerSlots& s = layer.slots;
  bound.input_norm = norm(s.input_norm);
  bound.post_norm = norm(s.post_norm);
  bound.q_norm = norm(s.q_norm);
  bound.k_norm = norm(s.k_norm);
  bound.q = linear(s.q);
  bound.k = linear(s.k);
  bound.v = linear(s.v);
  bound.o = linear(s.o);
  bound.gate = linear(s.gate);
  bound.up = linear(s.up);
  bound.down = linear(s.down);
  return bound;
}

LinearParameters attach_head(ParameterStore& store, const ModelLayout& layout) {
  return attach_linear(store, layout.tail, {.weight = layout.head}, std::nullopt);
}

}  // namespace plimsoll::runtime
