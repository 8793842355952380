#include "planner/model_parts.h"

#include <algorithm>
#include <utility>

#include "models/bitsandbytes.h"
#include "models/decisions/layer.h"
#include "models/decisions/layer_modules.h"
#include "models/lora.h"
#include "models/prompt_adapters.h"
#include "models/recompute.h"
#include "models/run_names.h"
#include "models/tensor_parallel.h"
#include "models/trainable.h"
#include "planner/joined_modules.h"
#include "planner/layer_parts.h"
#include "planner/stacks/stack_info.h"

namespace plimsoll::planner {

using models::IndexRange;
using models::ModelSpec;
using models::ParameterRow;

namespace {

using models::decisions::layer_module;
using models::decisions::parameter_name;
using models::decisions::ParameterName;

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

// GEMMs outside of the layers and the head: BertPredictionHeadTransform's, OPT-350m's two.
LinearPart* gemm_of_ends(ModelParts& parts, std::string_view module) {
  if (module.ends_with("project_in")) return &parts.project_in;
  const bool head = module.ends_with("predictions.transform.dense") ||
                    module.ends_with("project_out") || module.ends_with("pooler.dense");
  return head ? &parts.head_transform : nullptr;
}

// Where its backward is.
std::vector<Parameter>& gemm_parameters(ModelParts& parts, const LinearPart& gemm) {
  return &gemm == &parts.project_in ? parts.embedding : parts.tail;
}

// Of all experts of each layer.
void add_to_stacked(std::vector<LayerPart>& layers, const IndexRange& range,
                    const models::LoraModule& module, const models::Lora& lora, bool loops) {
  check(!loops, ErrorKind::bad_input, [&] {
    return "--target-parameters: " + module.name +
           " is no parameter before Transformers 5.0, where experts are linear modules: "
           "--lora-targets names them";
  });
  const models::Block& block = *layers[static_cast<std::size_t>(range.first)].block;
  const auto of =
      std::ranges::find(block.modules, models::ModuleClass::experts, &models::Module::kind);
  for (std::int64_t i = 0; i < range.count; ++i) {
    LayerPart& layer = layers[static_cast<std::size_t>(range.first + i * range.step)];
    ExpertsPart& experts = layer.experts[of->place];
    (module.stacked == models::kDown ? experts.down_rank : experts.gate_up_rank) = lora.rank;
    for (const ParameterRow* row : module.trained()) {
      layer.parameters.push_back(parameter_of(row->shape, true));
      layer.parameters.back().adapter = true;
      layer.parameters.back().node = node_of(*layer.block, *of);
    }
  }
}

void add_adapter(ModelParts& parts, std::vector<LayerPart>& layers, const ModelSpec& model,
                 const PlacedAdapter& placed, const models::Lora& lora) {
  const models::LoraModule& module = placed.module;
  const auto adapt = [&](LinearPart& linear) {
    linear.adapter = lora.kind == models::AdapterKind::lora   ? Adapter::lora
                     : lora.kind == models::AdapterKind::vera ? Adapter::vera
                     : module.scales_input                    ? Adapter::ia3_input
                                                              : Adapter::ia3;
    if (is_ia3(linear.adapter)) return;
    linear.lora_rank = placed.joined.parts > 0 ? module.a.shape.axes[0] : lora.rank;
    linear.joined = placed.joined;
    linear.lora_bias = lora.bias;
    linear.dora = lora.dora;
  };
  // VeraModel._find_dim: as large as the widest module needs.
  if (lora.kind == models::AdapterKind::vera) {
    parts.shared_a = std::max(parts.shared_a, checked_multiply(lora.rank, module.in));
    parts.shared_b = std::max(parts.shared_b, checked_multiply(lora.rank, module.out));
  }
  const ParameterRow& base = model.parameters[module.base];
  const IndexRange* range = layers_of(base);
  const auto add = [&](std::vector<Parameter>& parameters, int node) {
    for (const ParameterRow* row : module.trained())
      for (std::int64_t i = 0; i < lora.adapters; ++i) {
        parameters.push_back(parameter_of(row->shape, i == 0));
        parameters.back().adapter = true;
        parameters.back().node = node;
      }
  };
  if (LinearPart* const gemm = gemm_of_ends(parts, parameter_name(base.name).module)) {
    check(lora.kind == models::AdapterKind::lora, ErrorKind::unsupported, [&] {
      return "--lora-targets " + module.name + ": vectors outside of layers are not modelled yet";
    });
    adapt(*gemm);
    return add(gemm_parameters(parts, *gemm), -1);
  }
  check(range != nullptr, ErrorKind::unsupported,
        [&] { return "--lora-targets " + module.name + ": adapters on it are not modelled yet"; });
  const LayerPart& first = layers[static_cast<std::size_t>(range->first)];
  const bool loops = first.block->loop.experts > 0;
  check(!base.bare, ErrorKind::unsupported, [&] {
    return "--lora-targets " + module.name + ": adapters on the routers of " + model.name +
           " are not modelled yet: name linear modules (attention, or q_proj, v_proj, ...)";
  });
  if (!module.stacked.empty()) return add_to_stacked(layers, *range, module, lora, loops);
  if (!base.stacked.empty()) {
    check(loops, ErrorKind::unsupported, [&] {
      return "--lora-targets " + module.name + ": the experts of " + model.name +
             " are one parameter and no linear modules in Transformers 5: "
             "--target-parameters names them (mlp.experts.gate_up_proj, mlp.experts.down_proj)";
    });
    for (std::int64_t i = 0; i < range->count; ++i) {
      LayerPart& layer = layers[static_cast<std::size_t>(range->first + i * range->step)];
      for_each_expert(*layer.block, module.name + ".weight",
                      module.trained().front()->ranges.back(), [&](const models::Module& of) {
                        adapt(layer.linears[of.place]);
                        add(layer.parameters, node_of(*layer.block, of));
                      });
    }
    return;
  }
  const models::Module& of = layer_module(*first.block, placed.name);
  check(!models::is_norm(of.kind), ErrorKind::unsupported,
        [&] { return "--lora-targets " + module.name + " is no linear layer"; });
  for (std::int64_t i = 0; i < range->count; ++i) {
    LayerPart& layer = layers[static_cast<std::size_t>(range->first + i * range->step)];
    adapt(layer.linears[of.place]);
    add(layer.parameters, node_of(*layer.block, of));
  }
}

// A prompt or a prefix that is learned, and what makes it.
void add_prompt(ModelParts& parts, std::vector<LayerPart>& layers, const ModelSpec& model,
                const models::Strategy& strategy) {
  parts.virtual_tokens = models::virtual_tokens(strategy);
  parts.prefix_tokens = models::prefix_tokens(strategy);
  for (LayerPart& layer : layers) layer.prefixed = parts.prefix_tokens > 0;
  for (const ParameterRow& row : models::prompt_parameters(model, *strategy.lora)) {
    Parameter& parameter = parts.embedding.emplace_back(parameter_of(row.shape, true));
    parameter.adapter = true;
    parameter.embedding = row.module == models::ModuleKind::embedding;
    parameter.hidden = !parameter.embedding;
    if (row.shape.rank != 2 || parameter.embedding) continue;
    parts.prompt.push_back(
        {.in = row.shape.axes[1], .out = row.shape.axes[0], .bias = true, .of_adapter = true});
  }
}

// Rows outside layers: embeddings, final norm, head.
void add_to_ends(ModelParts& parts, const ParameterRow& row, bool trainable) {
  using models::ModuleKind;
  const ParameterName name = parameter_name(row.name);
  const bool bias = name.leaf == "bias";
  Parameter parameter = parameter_of(row.shape, trainable);
  // A tied table belongs to the tail, where the head needs it too.
  const auto embed = [&](bool tied = false) {
    parameter.embedding = true;
    parameter.hidden = false;
    (tied ? parts.tail : parts.embedding).push_back(parameter);
  };
  if (row.module == ModuleKind::head) {
    if (row.tied) return;
    if (bias) {
      parts.head.bias = true;
      parts.head.train_bias = trainable;
    } else {
      add_weight(parts.head, row, trainable);
    }
    parameter.hidden = false;
    parts.tail.push_back(parameter);
  } else if (row.module == ModuleKind::norm) {
    const bool embedding = name.module.find("embeddings") != std::string::npos;
    NormPart& norm = embedding ? parts.embedding_norm : parts.final_norm;
    if (!embedding) {
      parts.norm_under_base = std::ranges::count(name.module, '.') == 1;
      parts.base_is_model = name.module.starts_with("model.");
    }
    norm.width = row.shape.axes[0];
    (bias ? norm.train_bias : norm.train_weight) = trainable;
    norm.bias = norm.bias || bias;
    (embedding ? parts.embedding : parts.tail).push_back(parameter);
  } else if (models::decisions::is_position_table(name.module)) {
    parts.position_rows = row.shape.axes[0];
    parts.train_positions = trainable;
    embed();
  } else if (name.module.ends_with("token_type_embeddings")) {
    parts.train_token_types = trainable;
    embed();
  } else if (LinearPart* const gemm = gemm_of_ends(parts, name.module)) {
    if (bias) {
      gemm->bias = true;
      gemm->train_bias = trainable;
    } else {
      add_weight(*gemm, row, trainable);
    }
    gemm_parameters(parts, *gemm).push_back(parameter);
  } else {
    check(row.module == ModuleKind::embedding, ErrorKind::unsupported,
          [&] { return row.name + " is in no modelled step"; });
    parts.train_embedding = trainable;
    embed(parts.decoder.tied_head);
  }
}

// PEFT's ModulesToSaveWrapper keeps the original, frozen, beside the copy that it trains.
void add_original(std::vector<Parameter>& parameters, std::size_t before) {
  if (parameters.size() == before) return;
  parameters.push_back(parameters.back());
  parameters.back().trainable = false;
}

// convert_to_float8_training turns every nn.Linear that its caller's filter lets pass: whose widths
// divide by 16, which is not the head, and of Transformers' models not the first of all either
// (accelerate 1.15, utils/ao.py, filter_linear_layers; torchtitan, Float8 converter). Our own
// runtime has a rule of its own (models/decisions/float8.h).
void convert_to_float8(std::vector<LayerPart>& layers, const models::Strategy& strategy) {
  constexpr std::int64_t kAlign = 16;
  if (strategy.precision != models::Precision::fp8_mixed || stack_info(strategy.stack).own_kernels)
    return;
  bool skips = models::is_transformers(strategy.code);
  for (LayerPart& layer : layers)
    for (const models::Module& module : layer.block->modules) {
      if (module.kind != models::ModuleClass::linear || std::exchange(skips, false)) continue;
      LinearPart& linear = layer.linears[module.place];
      linear.float8 = linear.in % kAlign == 0 && linear.out % kAlign == 0;
      for (Parameter& p : layer.parameters)
        if (p.node == node_of(*layer.block, module) && p.columns > 0) p.float8 = linear.float8;
    }
}

}  // namespace

std::vector<models::PackedTensor> beside_packed(const Parameter& parameter,
                                                const models::Strategy& strategy) {
  if (parameter.packed == nullptr) return {};
  auto tensors =
      models::packed_tensors(*parameter.packed, parameter.unpacked, strategy.quantize->held_in);
  tensors.erase(tensors.begin());  // the values themselves
  if (models::packs_with_bitsandbytes(strategy) && models::shares_scale_table(strategy))
    std::erase_if(tensors, [](const models::PackedTensor& tensor) {
      return tensor.name == ".nested_quant_map";
    });
  // LitGPT packs while Fabric's context has bfloat16 as the default dtype, in which
  // get_4bit_type makes its 16 values (bitsandbytes 0.50.2, functional.py).
  if (models::is_litgpt(strategy.code))
    for (models::PackedTensor& tensor : tensors)
      if (tensor.name == ".quant_map") tensor.dtype = DType::bf16;
  return tensors;
}

bool LayerRun::trains() const {
  return std::ranges::any_of(pattern, &LayerPart::trains);
}

bool LayerPart::trains() const {
  return prefixed || std::any_of(parameters.begin(), parameters.end(),
                                 [](const Parameter& p) { return p.trainable; });
}

// Where whole layers are checkpointed, the frozen embedding's output is asked for a gradient
// (enable_input_require_grads): by Transformers from 5.0 on (modeling_utils.py,
// gradient_checkpointing_enable); before, by PEFT (0.21, peft_model.py), which leaves a packed base
// to prepare_model_for_kbit_training, and that does it for reentrant checkpoints alone
// (utils/other.py). Our own runtime and torchtune's adapters need none.
bool forces_input_gradient(const models::Strategy& strategy) {
  if (!models::decisions::recomputes_layers(strategy.recompute.kind) ||
      !models::is_transformers(strategy.code) || !stack_info(strategy.stack).runs_transformers)
    return false;
  return !strategy.quantize || strategy.transformers >= models::kAsksEmbeddingForGradient ||
         models::decisions::reentrant_checkpoints(strategy);
}

namespace {
struct Forward {
  const models::Decoder& decoder;
  const std::vector<std::shared_ptr<const models::Block>>& blocks;
  const models::OtherForward* other = nullptr;
};

// LitGPT's finetune/lora.py packs the head, too; since October 2024 it puts bitsandbytes'
// StableEmbedding, with a LayerNorm, in the embedding's place. Nothing froze either, and the
// optimizer knows neither.
bool packs_head(const models::Strategy& s) {
  return models::is_litgpt(s.code) && s.quantize;
}
void make_embedding_stable(ModelParts& parts) {
  models::Decoder& d = parts.decoder;
  d.embedding_norm = parts.train_embedding = true;
  parts.embedding_norm = {.width = d.hidden, .bias = true, .kind = models::NormKind::layer_norm};
  for (int i = 0; i < 2; ++i)
    parts.embedding.push_back(parameter_of(models::Shape{d.hidden}, false));
}

Forward forward_of(const ModelSpec& model, const models::Strategy& strategy) {
  const auto of = [&](const models::OtherForward& forward) {
    return forward.code == strategy.code &&
           (!forward.before || (stack_info(strategy.stack).runs_transformers &&
                                strategy.transformers < *forward.before));
  };
  const auto found = std::ranges::find_if(model.other_forwards, of);
  if (found != model.other_forwards.end()) return {found->decoder, found->blocks, &*found};
  check(strategy.code == models::ModelCode::transformers, ErrorKind::unsupported, [&] {
    return "--model-code " + std::string(models::name_of(strategy.code)) + ": its " +
           model.model_type +
           (models::is_litgpt(strategy.code)
                ? " is not modelled (llama and mistral are, without biases and windows)"
            : models::is_torchtune(strategy.code)
                ? " is not modelled (llama and mistral are, without biases)"
                : " is not modelled (llama is, without biases or a tied head)");
  });
  return {*model.decoder, model.blocks};
}

ModelParts parts_of(const ModelSpec& model, const models::Strategy& strategy) {
  check(model.decoder.has_value(), ErrorKind::unsupported, [&] {
    return model.name + ": the training step of model_type '" + model.model_type +
           "' is not modelled yet" + (model.no_decoder.empty() ? "" : ": " + model.no_decoder);
  });
  models::check_layers(strategy.recompute, model.decoder->layers);
  ModelParts parts;
  const Forward forward = forward_of(model, strategy);
  parts.decoder = forward.decoder;
  parts.max_positions = model.max_positions;
  parts.model_type = model.model_type;
  const models::Decoder& d = parts.decoder;
  parts.head = {.in = d.table_width(), .out = d.labels > 0 ? d.labels : d.vocab};
  parts.final_norm.kind = parts.embedding_norm.kind = d.norm;
  std::vector<LayerPart> layers;
  for (std::size_t l = 0; std::cmp_less(l, d.layers); ++l)
    layers.push_back(part_of(*forward.blocks[l % forward.blocks.size()]));
  const bool adapters = strategy.lora.has_value();
  bool any = adapters;
  for (const models::TrainableRow& entry :
       joined_rows(models::trainable_rows(model, strategy), forward.other)) {
    const bool trainable = entry.trainable;
    const bool saved = adapters && models::is_saved(*strategy.lora, entry.row);
    parts.trains_all = parts.trains_all && trainable;
    any = any || trainable;
    if (const IndexRange* range = layers_of(entry.row)) {
      for (std::int64_t i = 0; i < range->count; ++i) {
        LayerPart& layer = layers[static_cast<std::size_t>(range->first + i * range->step)];
        const std::size_t before = layer.parameters.size();
        add_to_layer(layer, entry.row, trainable, strategy.quantize);
        if (saved) add_original(layer.parameters, before);
      }
    } else {
      const std::size_t front = parts.embedding.size(), tail = parts.tail.size();
      add_to_ends(parts, entry.row, trainable);
      if (packs_head(strategy) && entry.row.module == models::ModuleKind::head)
        parts.tail.back() = pack(parts.head, parts.tail.back(), entry.row, *strategy.quantize);
      if (saved) add_original(parts.embedding, front);
      if (saved) add_original(parts.tail, tail);
    }
  }
  check(any, ErrorKind::bad_input, "--freeze leaves nothing to train");
  if (d.tied_head) parts.head.train_weight = parts.train_embedding;
  if (adapters)
    for (const PlacedAdapter& placed : placed_adapters(model, *strategy.lora, forward.other))
      add_adapter(parts, layers, model, placed, *strategy.lora);
  if (adapters) add_prompt(parts, layers, model, strategy);
  if (packs_head(strategy) && !models::is_litgpt_of_2024(strategy.code))
    make_embedding_stable(parts);
  for (LayerPart& layer : layers) order_by_module(layer);
  convert_to_float8(layers, strategy);
  find_runs(parts, layers, parts.trains_front() || forces_input_gradient(strategy),
            forward.blocks.size());
  split_at_checkpoints(parts, strategy.recompute);
  return parts;
}
}  // namespace

ModelParts model_parts(const ModelSpec& model, const models::Strategy& strategy) {
  if (strategy.tp == 1) return parts_of(model, strategy);
  auto own = std::make_shared<const ModelSpec>(models::divided(model, strategy));
  ModelParts parts = parts_of(*own, strategy);
  parts.own_model = std::move(own);
  return parts;
}

}  // namespace plimsoll::planner
