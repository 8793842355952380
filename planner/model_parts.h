// A decoder's parameters as the parts of its training step: embedding, runs of equal layers, tail.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "models/block.h"
#include "models/decoder.h"
#include "models/model_spec.h"
#include "models/run_spec.h"
#include "models/storages.h"
#include "planner/joined_adapter.h"

namespace plimsoll::planner {

// One parameter tensor, of one layer where it belongs to a layer.
struct Parameter {
  std::int64_t elements = 0;
  std::int64_t rows = 1;  // length of axis 0: what FSDP2 shards
  bool trainable = true;
  bool adapter = false;  // LoRA's A and B: stored in the adapter's dtype
  // A packed weight: how; `elements` of the dtype that holds it, for this one. Its bias is no such
  // weight, but bitsandbytes stores it in the dtype it computes in.
  const models::PackedStorage* packed = nullptr;
  models::PackedShape unpacked;
  bool bias_of_packed = false;
  std::int64_t columns = 0;  // length of the last axis; 0: there is one axis
  bool embedding = false;  // of an nn.Embedding
  bool hidden = true, float8 = false;  // neither embedding nor head; the weight of a Float8Linear
  int node = -1;  // of a layer's block: which one uses it
  bool operator==(const Parameter&) const = default;
};

// A packed weight's scales and tables: nobody's parameters, and whole on every rank. None: none.
std::vector<models::PackedTensor> beside_packed(const Parameter& parameter,
                                                const models::Strategy& strategy);

// What PEFT puts around a linear. ia3_input: of a feed-forward module, whose input it scales.
enum class Adapter : std::uint8_t { none, lora, ia3, ia3_input, vera };
constexpr bool is_ia3(Adapter adapter) {
  return adapter == Adapter::ia3 || adapter == Adapter::ia3_input;
}

// A GEMM with a weight.
struct LinearPart {
  std::int64_t in = 0, out = 0;
  bool bias = false;
  bool conv1d = false;  // GPT-2's addmm(bias, x, weight) and not F.linear(x, weight, bias)
  bool train_weight = true, train_bias = true;
  Adapter adapter = Adapter::none;
  std::int64_t lora_rank = 0;  // LoRA's, VeRA's
  bool lora_bias = false, dora = false;  // of that adapter
  JoinedAdapter joined;
  const models::PackedStorage* packed = nullptr;  // the frozen weight's
  bool of_adapter = false, float8 = false;  // an adapter's, in its dtype; torchao's Float8Linear
  bool adapted() const { return adapter != Adapter::none; }
  bool trains() const { return train_weight || (bias && train_bias) || adapted(); }
  bool operator==(const LinearPart&) const = default;
};

struct NormPart {
  std::int64_t width = 0;  // normalized axis
  bool bias = false;
  models::NormKind kind = models::NormKind::rms_norm;
  bool train_weight = true, train_bias = true;
  bool trains() const { return train_weight || (bias && train_bias); }
  bool operator==(const NormPart&) const = default;
};

// Experts of one MLP each, stacked: gate_up_proj [experts, 2·ffn, hidden], down_proj, biases.
struct ExpertsPart {
  std::int64_t experts = 0, active = 0;  // `active`: how many a token visits
  std::int64_t hidden = 0, ffn = 0;
  bool has_gate_up = false, has_down = false, bias = false;  // among the layer's parameters
  bool train_gate_up = true, train_down = true, train_gate_up_bias = true, train_down_bias = true;
  std::int64_t gate_up_rank = 0, down_rank = 0;  // LoRA's of each expert's share
  std::int64_t gate_up() const { return checked_multiply(2, down()); }
  std::int64_t down() const { return checked_multiply(experts, checked_multiply(hidden, ffn)); }
  bool adapted() const { return gate_up_rank > 0 || down_rank > 0; }
  bool trains_bias() const { return bias && (train_gate_up_bias || train_down_bias); }
  bool trains() const { return train_gate_up || train_down || trains_bias() || adapted(); }
  bool operator==(const ExpertsPart&) const = default;
};

// What a strategy makes of a layer's modules. `block` is the model's and lives as long as that.
struct LayerPart {
  const models::Block* block = nullptr;
  std::vector<LinearPart> linears;  // by Module::place
  std::vector<NormPart> norms;
  std::vector<ExpertsPart> experts;
  bool train_sinks = true, prefixed = false;  // attention's; it has a learned prefix
  std::vector<Parameter> parameters;
  bool trains() const;
  bool operator==(const LayerPart&) const = default;
};

// As a backward makes their gradients: those of the node that ran last come first.
std::vector<Parameter> in_backward_order(const std::vector<Parameter>& parameters);

// Consecutive layers that repeat a pattern: one, or as many as the model's own blocks alternate in.
struct LayerRun {
  std::int64_t first = 0, count = 0;  // layers; a multiple of the pattern's
  std::vector<LayerPart> pattern;
  bool input_grad = true;  // something below is trained, so gradients flow through to the input
  std::int64_t period() const { return static_cast<std::int64_t>(pattern.size()); }
  std::int64_t repeats() const { return count / period(); }
  const LayerPart& layer(std::int64_t i) const {
    return pattern[static_cast<std::size_t>(i % period())];
  }
  bool trains() const;  // any of them
};

struct ModelParts {
  models::Decoder decoder;
  std::string model_type;
  LinearPart head;  // tied: train_weight as the embedding's
  NormPart final_norm, embedding_norm;
  // The final norm is the base model's own ("transformer.ln_f"); and that is called "model".
  bool norm_under_base = true, base_is_model = true;
  LinearPart project_in, head_transform;  // behind the embedding, before the head; width 0: none
  std::int64_t position_rows = 0, max_positions = 0;  // learned positions; ModelSpec's
  bool train_embedding = true, train_positions = true, train_token_types = true;
  std::vector<Parameter> embedding, tail;  // tables, their norm, a prompt; final norm, own head
  std::vector<LayerRun> runs;
  std::int64_t shared_a = 0, shared_b = 0;  // elements of VeRA's frozen matrices
  std::int64_t virtual_tokens = 0, prefix_tokens = 0;  // of a learned prompt, or each layer's keys
  std::vector<LinearPart> prompt;  // the perceptron that makes either, if any
  bool train_positions_any() const { return position_rows > 0 && train_positions; }
  bool trains_types() const { return decoder.token_types > 0 && train_token_types; }
  // Anything before the layers?
  bool trains_front() const {
    return train_embedding || train_positions_any() || trains_types() || virtual_tokens > 0 ||
           (decoder.embedding_width > 0 && project_in.trains()) ||
           (decoder.embedding_norm && embedding_norm.trains());
  }
  bool trains_all = true;  // nothing is frozen
  std::shared_ptr<const models::ModelSpec> own_model;  // whose the blocks are: models::divided()'s
};

// Throws Error{unsupported} where the model has no decoder, Error{bad_input} for patterns and LoRA
// targets that match nothing; what models::divided() throws, whose parts --tp asks for.
ModelParts model_parts(const models::ModelSpec& model, const models::Strategy& strategy);

// Whether a frozen embedding's output (the token table's) is asked for a gradient, for checkpoints
// behind it. Parts depend on it, on --tp, on --recompute block and on what is trained.
bool forces_input_gradient(const models::Strategy& strategy);

}  // namespace plimsoll::planner
