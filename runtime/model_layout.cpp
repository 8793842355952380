#include "runtime/model_layout.h"

#include <algorithm>
#include <set>

#include "models/decisions/layer_modules.h"
#include "models/decisions/layer_ops.h"
#include "models/decisions/packed_weights.h"
#include "models/trainable.h"

namespace plimsoll::runtime {

using models::ModelSpec;
using models::ModuleKind;
using models::ParameterRow;

namespace {

using models::decisions::layer_module;
using models::decisions::parameter_name;
using models::decisions::ParameterName;

std::size_t index_in(const models::Block& block, const models::Module& module) {
  return static_cast<std::size_t>(&module - block.modules.data());
}

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

// Of layer `at`: a matrix of each expert, which are parts of two parameters.
void add_to_experts(LayerLayout& layer, const ParameterRow& row, std::int64_t at, bool trained) {
  const models::Module& module =
      layer_module(*layer.block, models::decisions::stack_name(row.name));
  ModuleSlots& slots = layer.modules[index_in(*layer.block, module)];
  const bool down = row.stacked == models::kDown;
  Slot& slot = down ? slots.down : slots.weight;
  const std::int64_t rows = (down ? 1 : 2) * row.shape.axes[0];
  if (!slot) {
    const std::string name = std::string(row.name.substr(0, row.name.find("{}"))) +
                             std::to_string(at) + "." + module.name + "." +
                             std::string(row.stacked);
    slot =
        append(layer.parameters, {name, {module.experts, rows, row.shape.axes[1]}, trained, false});
  }
  ModelParameter& whole = layer.parameters[*slot];
  check(whole.trained == trained && row.ranges.back().count == module.experts,
        ErrorKind::unsupported, [&] {
          return "--freeze, --train: " + row.name + " is a part of " + std::string(row.stacked) +
                 ", one parameter of all experts: it is trained as a whole or not at all";
        });
  // Gate and up of an expert stand one behind the other.
  const std::int64_t each = down ? 1 : 2;
  const bool second = !whole.pieces.empty();
  if (!second) whole.pieces.resize(static_cast<std::size_t>(each * module.experts));
  for (std::int64_t e = 0; e < module.experts; ++e)
    whole.pieces[static_cast<std::size_t>(e * each + (second ? 1 : 0))] = {
        models::expand(row.name, {at, row.ranges.back().first + e * row.ranges.back().step}),
        extents(row.shape), trained, false};
}

void add_to_layer(LayerLayout& layer, const ParameterRow& row, ModelParameter parameter) {
  const ParameterName name = parameter_name(row.name);
  ModuleSlots& slots =
      layer.modules[index_in(*layer.block, layer_module(*layer.block, name.module))];
  const std::size_t index = append(layer.parameters, std::move(parameter));
  (name.leaf == "bias" ? slots.bias : slots.weight) = index;
  if (name.leaf != "bias") slots.transposed = row.transposed;
}

void add_outside_layers(ModelLayout& layout, const ParameterRow& row, ModelParameter parameter) {
  const ParameterName name = parameter_name(row.name);
  if (row.module == ModuleKind::head) {
    if (name.leaf == "bias")
      layout.head_bias = append(layout.tail, std::move(parameter));
    else if (!layout.tied)
      layout.head = append(layout.tail, std::move(parameter));
  } else if (row.module == ModuleKind::norm) {
    (name.leaf == "bias" ? layout.final_norm.bias : layout.final_norm.weight) =
        append(layout.tail, std::move(parameter));
  } else if (models::decisions::is_position_table(name.module)) {
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
      const models::Module& base_module =
          layer_module(*layer.block, parameter_name(base.name).module);
      check(!models::is_norm(base_module.kind), ErrorKind::unsupported,
            [&] { return "--lora-targets " + module.name + " is no linear layer"; });
      ModuleSlots& slots = layer.modules[index_in(*layer.block, base_module)];
      const auto add = [&](const ParameterRow& row) {
        return append(layer.parameters,
                      {models::expand(row.name, {at}), extents(row.shape), true, true});
      };
      slots.lora_a = add(module.a);
      slots.lora_b = add(module.b);
    }
  }
}

// nullptr: a parameter of a layer is not packed.
const models::PackedStorage* packed_storage(const ParameterRow& row, bool trained,
                                            const models::Strategy& strategy) {
  if (!strategy.quantize || !models::packs_module(row) || parameter_name(row.name).leaf == "bias")
    return nullptr;
  check(!trained, ErrorKind::bad_input,
        [&] { return "--quantize: " + row.name + " is packed, and cannot be trained (--train)"; });
  return strategy.quantize->storage;
}

bool any_trains(const std::vector<ModelParameter>& list) {
  return std::any_of(list.begin(), list.end(), [](const ModelParameter& p) { return p.trained; });
}

}  // namespace

bool LayerLayout::trains() const {
  return any_trains(parameters);
}

const ModuleSlots& LayerLayout::module(std::string_view name) const {
  return modules[index_in(*block, layer_module(*block, name))];
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
  models::decisions::check_decoder(*model.decoder, strategy.recompute);
  models::decisions::check_kinds(std::set(model.blocks.begin(), model.blocks.end()).size(),
                                 strategy.recompute);
  models::decisions::check_packed(strategy);
  for (std::size_t l = 0; std::cmp_less(l, model.decoder->layers); ++l) {
    const auto& block = model.blocks[l % model.blocks.size()];
    models::decisions::own_ops(*block);
    layout.layers.push_back({block, {}, std::vector<ModuleSlots>(block->modules.size())});
  }
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
      if (!row.stacked.empty()) {
        add_to_experts(layout.layers[static_cast<std::size_t>(at)], row, at, trained);
        continue;
      }
      add_to_layer(layout.layers[static_cast<std::size_t>(at)], row,
                   {models::expand(row.name, {at}), extents(row.shape), trained, false,
                    packed_storage(row, trained, strategy)});
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
                      const ModuleSlots& slots) {
  NormParameters norm{attach(store, list, slots.weight), attach(store, list, slots.bias), 0};
  if (slots.weight) norm.width = list[*slots.weight].shape[0];
  return norm;
}

namespace {

LinearParameters attach_linear(ParameterStore& store, const std::vector<ModelParameter>& list,
                               const ModuleSlots& slots, const std::optional<models::Lora>& lora) {
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
  for (std::size_t i = 0; i < layer.modules.size(); ++i) {
    const ModuleSlots& slots = layer.modules[i];
    if (models::is_norm(layer.block->modules[i].kind))
      bound.norms.push_back(attach(store, layer.parameters, slots));
    else if (layer.block->modules[i].kind == models::ModuleClass::experts)
      bound.experts.push_back({attach(store, layer.parameters, slots.weight),
                               attach(store, layer.parameters, slots.down)});
    else
      bound.linears.push_back(attach_linear(store, layer.parameters, slots, lora));
  }
  return bound;
}

LinearParameters attach_head(ParameterStore& store, const ModelLayout& layout) {
  return attach_linear(store, layout.tail, {.weight = layout.head, .bias = layout.head_bias},
                       std::nullopt);
}

}  // namespace plimsoll::runtime
