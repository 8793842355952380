// How the ranks of a data-parallel group share the model, and what is handled together.
#pragma once

#include <vector>

#include "models/optimizer_states.h"
#include "planner/model_parts.h"
#include "planner/program/messages.h"
#include "planner/program/symbolic_bytes.h"
#include "planner/stacks/pytorch/attention_input.h"
#include "planner/stacks/pytorch/block_plan.h"
#include "planner/stacks/pytorch/compiled/layer.h"
#include "planner/stacks/pytorch/saved.h"

namespace plimsoll::planner::pytorch {

// A set of parameters that are handled together: an FSDP unit (one fully_shard'ed module, or one
// FlatParameter).
struct Unit {
  const std::vector<Parameter>* parameters = nullptr;
  models::GroupId group = models::kNoGroup;
  SymBytes gathered;  // all-gather output: one flat buffer
  SymBytes full;  // parameters copied out of it, one tensor each
  SymBytes cast;  // flat low-precision copy of the local shards
  SymBytes reduce_input;  // reduce-scatter input, padded
  SymBytes reduce_output;
  SymBytes copy_scratch;  // of the copy of gradients into the input of reduce-scatter
  SymBytes
      listed;  // what foreach makes a list of, of its trained parameters as this rank steps them
  SymBytes shard_grad_cast;  // the shard's gradient in the stored dtype, where that differs
  TensorId gather_forward = kNoTensor, gather_backward = kNoTensor;
  TensorId cast_backward = kNoTensor;  // `cast`, for the backward's all-gather
  // FSDP1: for the forward's; and where a checkpoint gathers for its forward.
  TensorId cast_forward = kNoTensor, cast_recompute = kNoTensor, full_recompute = kNoTensor;
  TensorId full_forward = kNoTensor, full_backward = kNoTensor;
  TensorId reduce_in = kNoTensor;
  TensorId flat_shard = kNoTensor;  // FSDP1: the rank's part, which stays
  TensorId flat_grad = kNoTensor, flat_grad_sum = kNoTensor;  // FSDP1: of the unsharded unit
  TensorId shard_grad = kNoTensor;  // lives until zero_grad
  TensorId last_grad = kNoTensor;  // of the unit's last parameter, in the model's order
  int last_order = -1;  // its place there
  std::vector<TensorId> summed;  // gradients that ranks sharing a sequence sum up first
  std::vector<TensorId> grads;  // written by this micro-batch, dead after the unit's backward
  std::vector<int> order;  // of `grads` in the model, where they are converted one by one
  std::vector<TensorId> kept;  // live until zero_grad, or until the last micro-batch's reduction
  // FSDP1 (fsdp1.h):
  bool trains = true;  // else nothing of the flat parameter does: adapters may, on their own
  SymBytes shard;  // the rank's part of it
  SymBytes from_host;  // that part as it comes from the host, until it is cast
  bool holds_shard = false;  // it is not cast, and the original parameters refer to it
  std::vector<models::SteppedTensor> parts;  // of the trained parameters, what the rank has of each
  SymBytes adapters;  // the rank's parts of them
  SymBytes adapter_gathered;  // the largest of them, whole
  std::int64_t adapter_count = 0;
  TensorId adapter_backward = kNoTensor;  // gathered ones
  std::vector<TensorId> adapter_grads;  // sharded ones, until zero_grad
  std::size_t next = 0;  // the kept gradient that the next one is added to
  bool reshards = false;  // between forward and backward
  // Of its messages: where it stands in the model, how many are alike, how many of those are
  // gathered for the backward.
  Message::Part part = Message::Part::front;
  std::size_t layer = 0;
  std::int64_t copies = 1, regathered = 0;
  std::int64_t calls = 1;  // of its module in a forward, each between gathers
  void begin_micro_batch() {
    grads.clear();
    order.clear();
    summed.clear();
    adapter_grads.clear();
    next = 0;
    last_grad = kNoTensor;
    last_order = -1;
  }
  bool empty() const { return parameters == nullptr || parameters->empty(); }
};

// The head and the loss of a part of the tokens.
struct HeadPart {
  Unit unit;
  SymInt tokens;
  TensorId input = kNoTensor;  // laid out for the GEMM
  TensorId targets = kNoTensor, d_logits = kNoTensor;
  LinearSaved head;
  TapeSaved logits, entropy;  // loss_functions.cpp
};

// A run of layers; `stride` of them make one instance of the group: a checkpoint of equal layers,
// or the pattern in which layers alternate, each of them a checkpoint.
struct Run {
  const LayerRun* layers = nullptr;
  std::vector<BlockPlan> plans;  // of the pattern
  models::GroupId group = models::kNoGroup;
  TensorId out = kNoTensor, d_out = kNoTensor;  // residual stream after an instance, its gradient
  std::vector<TensorId> inner, d_inner;  // the same between an instance's layers
  std::vector<LayerSaved> saved, kept;
  std::vector<compiled::Layer> compiled;  // by plan, where layers are compiled
  std::vector<std::vector<TensorId>> compiled_saved;
  std::vector<TensorId> made_again;  // the stream behind a checkpoint's layers, recomputed
  std::vector<PrefixSaved> prefixes;  // by layer
  std::vector<TensorId> loaded;  // layers' inputs as they come back from the host (offloading.h)
  std::vector<Unit> units;
  std::int64_t count = 0;  // instances
  bool recomputed = false;  // wherever layers are, these are in checkpoints
  std::size_t stride() const { return units.size(); }
  bool alternates() const { return plans.size() > 1; }
  std::size_t checkpoint() const { return alternates() ? 1 : stride(); }  // layers of one
  const LayerPart& layer(std::size_t j) const {
    return layers->layer(static_cast<std::int64_t>(j));
  }
  const BlockPlan& plan(std::size_t j) const { return plans[j % plans.size()]; }
  const compiled::Layer& compiled_layer(std::size_t j) const {
    return compiled[j % compiled.size()];
  }
};

}  // namespace plimsoll::planner::pytorch
