#include "planner/layer_parts.h"

#include <algorithm>
#include <utility>

#include "models/decisions/layer_modules.h"

namespace plimsoll::planner {

using models::ParameterRow;
using models::decisions::layer_module;
using models::decisions::parameter_name;
using models::decisions::ParameterName;

namespace {

models::NormKind norm_kind(models::ModuleClass module) {
  switch (module) {
    case models::ModuleClass::rms_norm:
      return models::NormKind::rms_norm;
    case models::ModuleClass::rms_norm_fp32:
      return models::NormKind::rms_norm_fp32;
    case models::ModuleClass::rms_norm_one_plus:
      return models::NormKind::rms_norm_one_plus;
    case models::ModuleClass::rms_norm_inline:
      return models::NormKind::rms_norm_inline;
    case models::ModuleClass::rms_norm_fused:
      return models::NormKind::rms_norm_fused;
    case models::ModuleClass::rms_norm_composite:
      return models::NormKind::rms_norm_composite;
    case models::ModuleClass::rms_norm_product:
      return models::NormKind::rms_norm_product;
    case models::ModuleClass::rms_norm_product_low:
      return models::NormKind::rms_norm_product_low;
    default:
      return models::NormKind::layer_norm;
  }
}

// Rows of single experts, which are parts of two parameters.
void add_to_experts(LayerPart& layer, const ParameterRow& row, bool trainable) {
  const models::Module& module =
      layer_module(*layer.block, models::decisions::stack_name(row.name));
  ExpertsPart& part = layer.experts[module.place];
  const bool down = row.stacked == models::kDown;
  bool& trains = down ? part.train_down : part.train_gate_up;
  const bool known = std::exchange(down ? part.has_down : part.has_gate_up, true);
  const bool whole = row.ranges.back().count == part.experts;
  check(whole && (!known || trains == trainable), ErrorKind::unsupported, [&] {
    return "--freeze, --train: " + row.name + " is a part of " + std::string(row.stacked) +
           ", one parameter of all experts: it is trained as a whole or not at all";
  });
  trains = trainable;
  if (!known)
    layer.parameters.push_back({.elements = down ? part.down() : part.gate_up(),
                                .rows = part.experts,
                                .trainable = trainable,
                                .columns = down ? part.ffn : part.hidden,
                                .node = node_of(*layer.block, module)});
}

// A parameter of all experts that is a row of its own.
void train_experts(ExpertsPart& part, std::string_view leaf, bool trainable) {
  const bool bias = leaf.ends_with("_bias"), down = leaf.starts_with("down");
  (down ? part.has_down : part.has_gate_up) = true;
  if (bias)
    (down ? part.train_down_bias : part.train_gate_up_bias) = trainable;
  else
    (down ? part.train_down : part.train_gate_up) = trainable;
}

// Those of experts that are modules of their own, behind one another.
void add_to_loop(LayerPart& layer, const ParameterRow& row, bool trainable,
                 const std::optional<models::Quantization>& quantize) {
  for_each_expert(*layer.block, row.name, row.ranges.back(), [&](const models::Module& module) {
    LinearPart& part = layer.linears[module.place];
    part.train_weight = trainable;
    Parameter parameter = parameter_of(row.shape, trainable);
    parameter.node = node_of(*layer.block, module);
    layer.parameters.push_back(quantize ? pack(part, parameter, row, *quantize) : parameter);
  });
}

}  // namespace

LayerPart part_of(const models::Block& block) {
  LayerPart layer{.block = &block};
  for (const models::Module& module : block.modules) {
    if (models::is_norm(module.kind)) {
      layer.norms.push_back(
          {.width = module.in, .bias = module.bias, .kind = norm_kind(module.kind)});
    } else if (module.kind == models::ModuleClass::experts) {
      layer.experts.push_back({module.experts, module.active, module.in, module.out});
      layer.experts.back().bias = module.bias;
    } else if (module.kind == models::ModuleClass::sinks) {
      continue;  // LayerPart::train_sinks is all there is to say
    } else {
      layer.linears.push_back({.in = module.in,
                               .out = module.out,
                               .bias = module.bias,
                               .conv1d = module.kind == models::ModuleClass::conv1d});
    }
  }
  return layer;
}

Parameter parameter_of(const models::Shape& shape, bool trainable) {
  const auto last = static_cast<std::size_t>(std::max(1, shape.rank) - 1);
  return {.elements = shape.elements().value(),
          .rows = shape.axes[0],
          .trainable = trainable,
          .columns = last > 0 ? shape.axes[last] : 0};
}

int node_of(const models::Block& block, const models::Module& module) {
  const auto place = &module - block.modules.data();
  const auto node = std::ranges::find(block.nodes, place, &models::Node::module);
  return static_cast<int>(node - block.nodes.begin());
}

Parameter pack(LinearPart& part, Parameter weight, const ParameterRow& row,
               const models::Quantization& how) {
  check(!weight.trainable, ErrorKind::bad_input,
        [&] { return "--quantize: " + row.name + " is packed, and cannot be trained (--train)"; });
  // WQLinear_GEMM asks for whole groups of inputs and whole integers of outputs.
  const bool awq = how.storage->gemm == models::PackedGemm::awq;
  const std::int64_t ins = awq ? how.storage->block : 32, outs = awq ? 8 : 32;
  check(!how.storage->grouped || (part.in % ins == 0 && part.out % outs == 0), ErrorKind::bad_input,
        [&] {
          return "--quantize " + std::string(how.storage->name) + ": " + row.name + " is " +
                 std::to_string(part.out) + " x " + std::to_string(part.in) +
                 (awq ? "; AWQ takes multiples of 8 x 128" : "; QuantLinear takes multiples of 32");
        });
  const bool any_linear = how.storage->gemm != models::PackedGemm::torchao &&
                          how.storage->gemm != models::PackedGemm::hqq;
  check(!part.conv1d || any_linear, ErrorKind::bad_input, [&] {
    return "--quantize " + std::string(how.storage->name) + ": " + row.name +
           " is GPT-2's Conv1D, and nn.Linear alone is packed so";
  });
  part.packed = how.storage;
  part.conv1d = false;
  weight.packed = how.storage;
  weight.unpacked = {part.out, part.in};
  weight.elements = weight.rows =
      models::packed_tensors(*how.storage, weight.unpacked, how.held_in).front().elements.value();
  return weight;
}

void add_to_layer(LayerPart& layer, const ParameterRow& row, bool trainable,
                  const std::optional<models::Quantization>& quantize) {
  if (!row.stacked.empty())
    return layer.block->loop.experts > 0 ? add_to_loop(layer, row, trainable, quantize)
                                         : add_to_experts(layer, row, trainable);
  const ParameterName name = parameter_name(row.name);
  const models::Module& module = layer_module(*layer.block, name.module);
  const bool bias = name.leaf == "bias";
  Parameter parameter = parameter_of(row.shape, trainable);
  parameter.node = node_of(*layer.block, module);
  if (models::is_norm(module.kind)) {
    NormPart& part = layer.norms[module.place];
    (bias ? part.train_bias : part.train_weight) = trainable;
  } else if (module.kind == models::ModuleClass::experts) {
    train_experts(layer.experts[module.place], name.leaf, trainable);
  } else if (module.kind == models::ModuleClass::sinks) {
    layer.train_sinks = trainable;
  } else {
    LinearPart& part = layer.linears[module.place];
    (bias ? part.train_bias : part.train_weight) = trainable;
    // bitsandbytes replaces a loop's router, too; checkpoints of GPTQ leave it as it is.
    const bool packs =
        models::packs_module(row) || (layer.block->loop.experts > 0 && quantize &&
                                      quantize->storage->gemm != models::PackedGemm::gptq);
    if (quantize && packs) {
      if (bias)
        parameter.bias_of_packed = quantize->storage->converts_bias;
      else
        parameter = pack(part, parameter, row, *quantize);
    }
  }
  layer.parameters.push_back(parameter);
}

void order_by_module(LayerPart& layer) {
  const auto module = [&](const Parameter& parameter) {
    return layer.block->nodes[static_cast<std::size_t>(parameter.node)].module;
  };
  if (layer.block->loop.experts > 0)
    std::ranges::stable_sort(layer.parameters, std::ranges::less{}, module);
}

void find_runs(ModelParts& parts, const std::vector<LayerPart>& layers, bool grad,
               std::size_t period) {
  const auto repeats = [&](std::size_t first, std::size_t n) {
    std::size_t end = first + n;
    while (end < layers.size() && layers[end] == layers[end - n]) ++end;
    return (end - first) / n * n;
  };
  for (std::size_t l = 0; l < layers.size();) {
    const bool trains = layers[l].trains();
    // A layer that is the first to train has another input than those behind it.
    const bool alone = !grad && trains;
    const std::size_t of_one = alone ? 1 : repeats(l, 1);
    std::size_t n = 1, count = of_one;
    // What comes but once is no pattern: Qwen2's layers with and without a window.
    if (period > 1 && grad && l + 2 * period <= layers.size() && repeats(l, period) > of_one) {
      n = period;
      count = repeats(l, period);
    }
    const auto begin = layers.begin() + static_cast<std::ptrdiff_t>(l);
    parts.runs.push_back({static_cast<std::int64_t>(l),
                          static_cast<std::int64_t>(count),
                          {begin, begin + static_cast<std::ptrdiff_t>(n)},
                          grad});
    for (std::size_t i = 0; i < n; ++i) grad = grad || layers[l + i].trains();
    l += count;
  }
}

namespace {
// Makes runs end in front of layer `layer`.
void split_runs(std::vector<LayerRun>& runs, std::int64_t layer) {
  std::vector<LayerRun> out;
  const auto add = [&](const LayerRun& run, std::int64_t first, std::int64_t end) {
    if (first == end) return;
    LayerRun& part = out.emplace_back(run);
    part.first = first;
    part.count = end - first;
    if (part.count < run.period()) part.pattern.clear();
    for (std::int64_t i = 0; part.count < run.period() && i < part.count; ++i)
      part.pattern.push_back(run.layer(first - run.first + i));
  };
  for (const LayerRun& run : runs) {
    const std::int64_t end = run.first + run.count;
    const std::int64_t cut = std::clamp(layer, run.first, end);
    const std::int64_t before = (cut - run.first) / run.period() * run.period() + run.first;
    const std::int64_t behind = cut == before ? cut : before + run.period();
    add(run, run.first, before);
    add(run, before, cut);
    add(run, cut, behind);
    add(run, behind, end);
  }
  runs = std::move(out);
}
}  // namespace

void split_at_checkpoints(ModelParts& parts, const models::Recompute& recompute) {
  const std::int64_t step = recompute.layers;
  if (recompute.kind == models::RecomputeKind::block) split_runs(parts.runs, step);
  if (recompute.kind == models::RecomputeKind::recursive)  // no two layers are run again alike
    for (std::int64_t layer = 1; layer < parts.decoder.layers; ++layer)
      split_runs(parts.runs, layer);
  if (recompute.kind != models::RecomputeKind::nth || step == 1) return;
  for (std::int64_t end = step; end <= parts.decoder.layers; end += step) {
    split_runs(parts.runs, end - 1);
    split_runs(parts.runs, end);
  }
}

// A bias comes before its weight, but for stacked experts: theirs is indexed before the grouped
// GEMM that it is added to, and autograd runs what was made last first.
std::vector<Parameter> in_backward_order(const std::vector<Parameter>& parameters) {
  std::vector<Parameter> order(parameters.rbegin(), parameters.rend());
  std::ranges::stable_sort(order, std::ranges::greater{}, &Parameter::node);
  const auto has_two_axes = [](const Parameter& p) {
    return p.columns > 0 && p.elements == p.rows * p.columns;
  };
  for (std::size_t i = 0; i + 1 < order.size(); ++i) {
    const Parameter &bias = order[i], &weight = order[i + 1];
    const bool stacked = has_two_axes(bias) && weight.elements > bias.elements &&
                         weight.rows == bias.rows && weight.columns == bias.columns;
    if (stacked && bias.node == weight.node) std::swap(order[i], order[i + 1]);
  }
  return order;
}

}  // namespace plimsoll::planner
