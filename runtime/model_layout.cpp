#include "runtime/model_layout.h"

#include <algorithm>

#include "models/decisions/layer_modules.h"
#include "models/trainable.h"

namespace plimsoll::runtime {

using models::ModelSpec;
using models::ModuleKind;
using models::ParameterRow;

namespace {

using models::decisions::layer_module;
using models::decisions::LayerModule;
using models::decisions::parameter_name;
using models::decisions::ParameterName;

// In the order of LayerModule.
constexpr LinearSlots LayerSlots::*kLinears[models::decisions::kLayerLinears] = {
    &LayerSlots::q,    &LayerSlots::k,  &LayerSlots::v,   &LayerSlots::o,
    &LayerSlots::gate, &LayerSlots::up, &LayerSlots::down};
constexpr NormSlots LayerSlots::*kNorms[models::decisions::kLayerNorms] = {
    &LayerSlots::input_norm, &LayerSlots::post_norm, &LayerSlots::q_norm, &LayerSlots::k_norm};

Extents extents(const models::Shape& shape) {
  Extents lengths;
  lengths.rank = shape.rank;
  lengths.axes = shape.axes;
  return lengths;
}

std::size_t append(std::vector<ModelParameter>& list, ModelParameter parameter) {
  list.push_back(std::move(parameter));
  return list.size() - 1;
}

void add_to_layer(LayerLayout& layer, const ParameterRow& row, ModelParameter parameter) {
  const ParameterName name = parameter_name(row.name);
  const LayerModule module = layer_module(name.module);
  const std::size_t index = append(layer.parameters, std::move(parameter));
  const bool bias = name.leaf == "bias";
  if (is_linear(module)) {
    LinearSlots& linear = layer.slots.*kLinears[place_of(module)];
    (bias ? linear.bias : linear.weight) = index;
    if (!bias) linear.transposed = row.transposed;
  } else {
    NormSlots& norm = layer.slots.*kNorms[place_of(module)];
    (bias ? norm.bias : norm.weight) = index;
  }
}

void add_outside_layers(ModelLayout& layout, const ParameterRow& row, ModelParameter parameter) {
  const ParameterName name = parameter_name(row.name);
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
      const LayerModule name = layer_module(parameter_name(base.name).module);
      check(is_linear(name), ErrorKind::unsupported,
            [&] { return "--lora-targets " + module.name + " is no linear layer"; });
      LinearSlots& linear = layer.slots.*kLinears[place_of(name)];
      const auto add = [&](const ParameterRow& row) {
        return append(layer.parameters,
                      {models::expand(row.name, {at}), extents(row.shape), true, true});
      };
      linear.lora_a = add(module.a);
      linear.lora_b = add(module.b);
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
  bool any = strategy.lora.has_value();
  for (const models::TrainableRow& entry : models::trainable_rows(model, strategy)) {
    const ParameterRow& row = entry.row;
    const bool trained = entry.trainable;
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
