// What the writers of eager PyTorch's training step pass to each other: tensors that a forward
// leaves to its backward.
//
// What an op saves and allocates was read off the models' source (transformers 5.17, peft 0.21) and
// off the history of PyTorch's own CUDA caching allocator in real steps (tests/golden/traces; torch
// 2.11), which the tests compare with these writers op by op. Small kernels that always follow one
// another in the layers of every model are one op: `scratch` is what they need on top of the op's
// operands at their highest moment, derived above each. Everything else is one op a kernel.
#pragma once

#include <array>
#include <vector>

#include "planner/model_parts.h"
#include "planner/program/program_builder.h"
#include "planner/stacks/pytorch/kernels.h"
#include "planner/stacks/pytorch/names.h"
#include "planner/stacks/pytorch/rules.h"
#include "planner/stacks/pytorch/tape/rule.h"

namespace plimsoll::planner::pytorch {

using models::Category;
using models::kNoTensor;
using models::Phase;
using models::TensorId;

// What the model makes once for layers with full attention, [0], and with a sliding window, [1].
using ByWindow = std::array<TensorId, 2>;

// A tensor, or the neighbouring layer's.
struct Ref {
  TensorId tensor = kNoTensor;
  int delta = 0;
  TensorId beyond = kNoTensor;
  bool none() const { return tensor == kNoTensor && beyond == kNoTensor; }
};

// A number that hooks gave to a node of autograd (saved_hooks.h).
inline constexpr std::int32_t kNoNode = -1;

// What a function's forward (tape/rule.h) leaves: what autograd keeps, by Rule::kept; its result.
struct TapeSaved {
  TapeSaved() { kept.fill(kNoTensor); }
  std::array<TensorId, tape::kMostKept> kept;
  std::int32_t node = kNoNode;  // the first of those that save anything
  TensorId out = kNoTensor;
  std::array<TensorId, 3> also{kNoTensor, kNoTensor, kNoTensor};  // by Function::also_results
};
// A GEMM with a weight: what it read (the cast copy, or the input itself) and made.
struct GemmSaved {
  TensorId input = kNoTensor, weight_cast = kNoTensor, bias_cast = kNoTensor, out = kNoTensor;
  std::int32_t node = kNoNode;
};
// DoRA's: what its shares are made of (a base's result, B's, the scale for each), the norms of the
// weight's rows, and the base's GEMM once more.
struct DoraSaved {
  TensorId norm = kNoTensor;
  std::array<Ref, 4> given;
  TapeSaved shares;
  GemmSaved again;
};
// IA3's: what is scaled, the vector's copy, and what these make.
struct Ia3Saved {
  std::array<Ref, 2> given;
  TapeSaved scaled;
};
// VeRA's GEMMs with A and B, and what lambda_d and lambda_b make of these.
struct VeraSaved {
  GemmSaved a, b;
  std::array<Ref, 1> of_a, of_b;
  TapeSaved scaled_a, scaled_b;
};
struct LinearSaved {
  GemmSaved base, a, b;  // a, b: LoRA
  DoraSaved dora;
  Ia3Saved ia3;
  VeraSaved vera;
  TensorId mask = kNoTensor;  // LoRA's dropout
  TensorId source = kNoTensor, padded = kNoTensor, places = kNoTensor;  // joined_adapters.cpp
  TensorId out = kNoTensor;
  bool input_grad = true;  // what it reads requires one
};
struct AttentionSaved {
  TensorId q = kNoTensor, k = kNoTensor, v = kNoTensor;  // as a fused kernel read them
  TensorId mask = kNoTensor;  // additive, in the kernel's dtype
  // `offset`: of flex_attention what it returned beside its result.
  TensorId lse = kNoTensor, seed = kNoTensor, offset = kNoTensor;
  TensorId indices = kNoTensor, starts = kNoTensor, longest = kNoTensor;  // attention_varlen.cpp
  TapeSaved scored;  // of attention that stores its scores
  TensorId out = kNoTensor;
  std::int32_t node = kNoNode;  // a fused kernel's
  TensorId fused_out = kNoTensor;  // what a fused kernel made; `out`, or what `out` was copied from
};
struct BlockPlan;

// Rows of logits that cross entropy takes at once (loss_litgpt.cpp).
struct LossPiece {
  SymInt rows;
  TensorId targets = kNoTensor, log = kNoTensor, losses = kNoTensor, weight = kNoTensor;
  TensorId d_logits = kNoTensor;
};

// What the head's GEMM reads and the loss makes.
struct EndSaved {
  TensorId counted = kNoTensor;  // how many tokens are scored
  TensorId activated = kNoTensor;  // of the GEMM before the head's
  TensorId dropped = kNoTensor, dropout_mask = kNoTensor;  // of that, before a classifier
  TensorId upcast_logits = kNoTensor, shifted_logits = kNoTensor, returned_logits = kNoTensor;
  TapeSaved logits, entropy;  // loss_functions.cpp
  TensorId cache = kNoTensor;  // past keys and values that the model returns
  // TRL's head: the rows that are scored, what is kept of each, which they are; what it returns.
  TensorId rows = kNoTensor, log_z = kNoTensor, entropy_of_rows = kNoTensor, mask = kNoTensor;
  std::array<TensorId, 3> scattered{kNoTensor, kNoTensor, kNoTensor};
  TensorId own_loss = kNoTensor;
  TensorId tied_grad = kNoTensor;  // the head's share of a tied table's gradient
  TensorId log_probabilities = kNoTensor;
  TensorId targets = kNoTensor, padded_labels = kNoTensor, fused_weight_grad = kNoTensor;
  TensorId loss = kNoTensor, seed = kNoTensor;
  TensorId gathered = kNoTensor;  // what the head reads of all ranks that share a sequence
  Ref fused_input_grad;
};

// What one layer's forward leaves to its backward.
struct LayerSaved {
  std::vector<TensorId> values;  // by ValueId; the layer's input is not among them
  std::vector<TapeSaved> norms, experts;  // by Module::place
  std::vector<LinearSaved> linears;
  std::vector<AttentionSaved> attentions;  // by NodePlan::place
  std::vector<TapeSaved> activations;
  TapeSaved route;  // of a loop over experts
  std::vector<TensorId> masks;  // dropout's
  std::vector<std::int32_t> nodes;  // of activations and products, by place in the plan
  // What attributes of autograd's nodes hold, and not saved tensors: it lives as long as the graph.
  std::vector<Ref> attributes;

  void begin(const BlockPlan& plan);
  TensorId& of(models::ValueId id) { return values[static_cast<std::size_t>(id)]; }
  TensorId of(models::ValueId id) const { return values[static_cast<std::size_t>(id)]; }
};

}  // namespace plimsoll::planner::pytorch
