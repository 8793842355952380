#include "planner/model_parts.h"

#include <algorithm>
#include <array>
#include <string_view>

#include "models/lora.h"
#include "models/trainable.h"

namespace plimsoll::planner {

using models::IndexRange;
using models::ModelSpec;
using models::ParameterRow;

namespace {

struct LinearName {
  std::string_view suffix;
  LinearPart LayerPart::*part;
};
struct NormName {
  std::string_view suffix;
  NormPart LayerPart::*part;
};

// Modules of a layer, as Llama-like models and as GPT-2 call them.
constexpr std::array<LinearName, 11> kLinears{{{"self_attn.q_proj", &LayerPart::q},
                                               {"self_attn.k_proj", &LayerPart::k},
                                               {"self_attn.v_proj", &LayerPart::v},
                                               {"self_attn.o_proj", &LayerPart::o},
                                               {"mlp.gate_proj", &LayerPart::gate},
                                               {"mlp.up_proj", &LayerPart::up},
                                               {"mlp.down_proj", &LayerPart::down},
                                               {"attn.c_attn", &LayerPart::q},
                                               {"attn.c_proj", &LayerPart::o},
                                               {"mlp.c_fc", &LayerPart::up},
                                               {"mlp.c_proj", &LayerPart::down}}};
constexpr std::array<NormName, 6> kNorms{{{"input_layernorm", &LayerPart::input_norm},
                                          {"post_attention_layernorm", &LayerPart::post_norm},
                                          {"self_attn.q_norm", &LayerPart::q_norm},
                                          {"self_attn.k_norm", &LayerPart::k_norm},
                                          {"ln_1", &LayerPart::input_norm},
                                          {"ln_2", &LayerPart::post_norm}}};

struct SplitName {
  std::string_view module;  // within the layer, or whole
  bool bias = false;
};

SplitName split(std::string_view name, bool in_layer) {
  if (in_layer) {
    const std::size_t at = name.find("{}.");
    if (at != std::string_view::npos) name.remove_prefix(at + 3);
  }
  const bool bias = name.ends_with(".bias");
  const std::size_t dot = name.rfind('.');
  return {dot == std::string_view::npos ? name : name.substr(0, dot), bias};
}

// The layers of a row: its outermost range. The row's name has one "{}" for a dense decoder.
const IndexRange* layers_of(const ParameterRow& row) {
  return row.ranges.empty() ? nullptr : &row.ranges.front();
}

void add_weight(LinearPart& part, const ParameterRow& row, bool trainable) {
  const std::size_t out = row.transposed ? 1 : 0;
  part.out = row.shape.axes[out];
  part.in = row.shape.axes[1 - out];
  part.train_weight = trainable;
}

void add_to_layer(LayerPart& layer, const ParameterRow& row, bool trainable) {
  const SplitName name = split(row.name, true);
  for (const LinearName& linear : kLinears) {
    if (linear.suffix != name.module) continue;
    LinearPart& part = layer.*linear.part;
    if (name.bias) {
      part.bias = true;
      part.train_bias = trainable;
    } else {
      add_weight(part, row, trainable);
    }
  }
  for (const NormName& norm : kNorms) {
    if (norm.suffix != name.module) continue;
    NormPart& part = layer.*norm.part;
    if (name.bias) {
      part.bias = true;
      part.train_bias = trainable;
    } else {
      part.width = row.shape.axes[0];
      part.train_weight = trainable;
    }
  }
  layer.parameters.push_back({row.shape.elements().value(), row.shape.axes[0], trainable, false});
}

void add_adapter(std::vector<LayerPart>& layers, const ModelSpec& model,
                 const models::LoraModule& module) {
  const ParameterRow& base = model.parameters[module.base];
  const IndexRange* range = layers_of(base);
  check(range != nullptr, ErrorKind::unsupported,
        [&] { return "--lora-targets " + module.name + ": adapters on it are not modelled yet"; });
  const SplitName name = split(base.name, true);
  for (std::int64_t i = 0; i < range->count; ++i) {
    LayerPart& layer = layers[static_cast<std::size_t>(range->first + i * range->step)];
    for (const LinearName& linear : kLinears)
      if (linear.suffix == name.module) (layer.*linear.part).lora_rank = module.a.shape.axes[0];
    for (const ParameterRow* row : {&module.a, &module.b})
      layer.parameters.push_back({row->shape.elements().value(), row->shape.axes[0], true, true});
  }
}

// Rows outside layers: embeddings, final norm, head.
void add_to_ends(ModelParts& parts, const ParameterRow& row, bool trainable) {
  using models::ModuleKind;
  const SplitName name = split(row.name, false);
  const Parameter parameter{row.shape.elements().value(), row.shape.axes[0], trainable, false};
  if (row.module == ModuleKind::head) {
    if (!row.tied) {
      add_weight(parts.head, row, trainable);
      parts.tail.push_back(parameter);
    }
  } else if (row.module == ModuleKind::norm) {
    parts.final_norm.width = row.shape.axes[0];
    (name.bias ? parts.final_norm.train_bias : parts.final_norm.train_weight) = trainable;
    parts.final_norm.bias = parts.final_norm.bias || name.bias;
    parts.tail.push_back(parameter);
  } else if (name.module.ends_with("wpe")) {
    parts.position_rows = row.shape.axes[0];
    parts.train_positions = trainable;
    parts.embedding.push_back(parameter);
  } else {
    parts.train_embedding = trainable;
    // A tied table belongs to the tail, where the head needs it too.
    (parts.decoder.tied_head ? parts.tail : parts.embedding).push_back(parameter);
  }
}

bool equal(const LayerPart& a, const LayerPart& b) {
  return a.input_norm == b.input_norm && a.post_norm == b.post_norm && a.q_norm == b.q_norm &&
         a.k_norm == b.k_norm && a.q == b.q && a.k == b.k && a.v == b.v && a.o == b.o &&
         a.gate == b.gate && a.up == b.up && a.down == b.down && a.parameters == b.parameters;
}

// Neighbouring layers that are equal, and stand alike to what is trained below them.
void find_runs(ModelParts& parts, const std::vector<LayerPart>& layers, bool grad) {
  for (std::size_t l = 0; l < layers.size(); ++l) {
    if (!parts.runs.empty()) {
      LayerRun& run = parts.runs.back();
      if (run.input_grad == grad && equal(run.layer, layers[l])) {
        ++run.count;
        grad = grad || layers[l].trains();
        continue;
      }
    }
    parts.runs.push_back({static_cast<std::int64_t>(l), 1, layers[l], grad});
    grad = grad || layers[l].trains();
  }
}

}  // namespace

bool LayerPart::trains() const {
  return std::any_of(parameters.begin(), parameters.end(),
                     [](const Parameter& p) { return p.trainable; });
}

// PEFT asks the frozen embedding's output for a gradient (peft 0.21, utils/other.py,
// enable_input_require_grads); our own runtime needs none.
bool forces_input_gradient(const models::Strategy& strategy) {
  return strategy.recompute.kind != models::RecomputeKind::none &&
         strategy.stack != models::Stack::plimsoll;
}

ModelParts model_parts(const ModelSpec& model, const models::Strategy& strategy) {
  check(model.decoder.has_value(), ErrorKind::unsupported, [&] {
    return model.name + ": the training step of model_type '" + model.model_type +
           "' is not modelled yet" + (model.no_decoder.empty() ? "" : ": " + model.no_decoder);
  });
  ModelParts parts;
  parts.decoder = *model.decoder;
  const models::Decoder& d = parts.decoder;
  parts.head = {.in = d.hidden, .out = d.vocab};
  std::vector<LayerPart> layers(static_cast<std::size_t>(d.layers));
  const bool adapters = strategy.lora.has_value();
  // Adapters freeze the base; --train names what is trained beside them.
  const bool base_frozen = adapters && strategy.train.empty();
  bool any = adapters;
  for (const models::TrainableRow& entry :
       models::trainable_rows(model, strategy.freeze, strategy.train)) {
    const bool trainable = entry.trainable && !base_frozen;
    parts.trains_all = parts.trains_all && trainable;
    any = any || trainable;
    if (const IndexRange* range = layers_of(entry.row)) {
      for (std::int64_t i = 0; i < range->count; ++i)
        add_to_layer(layers[static_cast<std::size_t>(range->first + i * range->step)], entry.row,
                     trainable);
    } else {
      add_to_ends(parts, entry.row, trainable);
    }
  }
  check(any, ErrorKind::bad_input, "--freeze leaves nothing to train");
  if (d.tied_head) parts.head.train_weight = parts.train_embedding;
  if (adapters)
    for (const models::LoraModule& module : models::lora_modules(model, *strategy.lora))
      add_adapter(layers, model, module);
  find_runs(
      parts, layers,
      parts.train_embedding || parts.train_positions_any() || forces_input_gradient(strategy));
  return parts;
}

}  // namespace plimsoll::planner
