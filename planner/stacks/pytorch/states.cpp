// What lives between steps: parameters, optimizer states, DDP's buckets; and the sizes of units.
#include <algorithm>
#include <queue>

#include "planner/stacks/pytorch/step.h"

namespace plimsoll::planner::pytorch {

using models::OptimizerImpl;
using models::Residency;

DType StepWriter::stored(const Parameter& p) const {
  if (p.adapter) return strategy_.lora->dtype;
  // Accelerate upcasts trainable parameters only.
  if (!p.trainable && strategy_.param_dtype) return *strategy_.param_dtype;
  return regime_.stored;
}

// The rank's part of one parameter. FSDP2 shards axis 0 and every rank holds ceil(rows / N) rows,
// a padded one included (_fsdp_param.py, _init_sharded_param).
Bytes StepWriter::local(const Parameter& p, DType dtype) const {
  const std::int64_t rows = ceil_divide(p.rows, shards_);
  return b_.rounded(storage(Count(checked_multiply(rows, p.elements / p.rows)), dtype));
}

void StepWriter::size_unit(Unit& unit, const std::vector<Parameter>& parameters,
                           models::GroupId group) {
  unit = {};
  unit.parameters = &parameters;
  unit.group = group;
  if (parallelism_ != DataParallelism::fsdp2) return;
  std::int64_t padded = 0, trained = 0;
  for (const Parameter& p : parameters) {
    const std::int64_t shard = checked_multiply(ceil_divide(p.rows, shards_), p.elements / p.rows);
    padded = checked_add(padded, shard);
    if (p.trainable) trained = checked_add(trained, shard);
    unit.full += b_.rounded(storage(Count(checked_multiply(shard, shards_)), regime_.weight));
  }
  const auto flat = [&](std::int64_t values, DType dtype) {
    return b_.rounded(storage(Count(values), dtype));
  };
  if (shards_ > 1) unit.gathered = flat(checked_multiply(padded, shards_), regime_.weight);
  if (regime_.stored != regime_.weight) unit.cast = flat(padded, regime_.weight);
  unit.reduce_input = flat(checked_multiply(trained, shards_), regime_.reduce);
  unit.reduce_output = flat(trained, regime_.reduce);
  if (regime_.reduce != regime_.stored) unit.shard_grad_cast = flat(trained, regime_.stored);
}

// Persistent tensors of one unit; `copies` of them.
void StepWriter::declare_unit(Unit& unit, std::int64_t copies) {
  const bool sharded = parallelism_ == DataParallelism::fsdp2;
  const bool partitioned = parallelism_ == DataParallelism::zero_redundancy;  // see declare_states
  const bool adam = strategy_.optimizer == models::Optimizer::adamw;
  const bool momentum = strategy_.optimizer == models::Optimizer::momentum;
  const bool fused = adam && strategy_.optimizer_impl == OptimizerImpl::fused;
  Bytes parameters, state, steps, gradients;
  const auto persistent = [&](const char* name, Bytes bytes, Category category) {
    b_.tensor_in(unit.group, name, bytes, category, Residency::persistent);
  };
  const auto declare = [&](Bytes weights, Bytes moments, Bytes counters) {
    persistent("parameters", weights, Category::parameters);
    if (partitioned || moments == Bytes(0)) return;
    if (adam) persistent("exp_avg", moments, Category::optimizer);
    if (adam) persistent("exp_avg_sq", moments, Category::optimizer);
    if (momentum) persistent("momentum_buffer", moments, Category::optimizer);
    if (fused) persistent("step", counters, Category::optimizer);
  };
  for (const Parameter& p : *unit.parameters) {
    const Bytes bytes = local(p, stored(p));
    const Bytes trained = p.trainable ? bytes : Bytes(0);
    const Bytes counter = p.trainable ? b_.rounded(Bytes(4)) : Bytes(0);  // fused: on the device
    parameters += bytes;
    state += trained;
    steps += counter;
    if (p.trainable)
      gradients += sharded ? bytes : b_.rounded(storage(Count(p.elements), stored(p)));
    largest_parameter_ = std::max(largest_parameter_, trained);
    if (rules_.each_parameter) declare(bytes, trained, counter);
  }
  if (!rules_.each_parameter) declare(parameters, state, steps);
  unit.state = state;
  states_.parameters += parameters * copies;
  states_.gradients += gradients * copies;
  if (partitioned) return;
  states_.optimizer += state * (copies * (adam ? 2 : momentum ? 1 : 0));
  if (fused) states_.optimizer += steps * copies;
}

// ZeroRedundancyOptimizer gives whole parameters to ranks: largest first, each to the rank that has
// least (zero_redundancy_optimizer.py, _partition_parameters). The fullest rank is planned.
Bytes StepWriter::largest_partition() const {
  std::vector<std::pair<std::int64_t, Bytes>> parameters;  // elements, bytes
  const auto add = [&](const Unit& unit, std::int64_t copies) {
    for (const Parameter& p : *unit.parameters)
      for (std::int64_t i = 0; p.trainable && i < copies; ++i)
        parameters.emplace_back(p.elements, b_.rounded(storage(Count(p.elements), stored(p))));
  };
  add(embedding_, 1);
  for (const Run& run : runs_)
    add(run.units[0], run.count * static_cast<std::int64_t>(run.stride()));
  add(tail_, 1);
  std::stable_sort(parameters.begin(), parameters.end(),
                   [](const auto& a, const auto& b) { return a.first > b.first; });
  using Load = std::pair<std::int64_t, std::size_t>;  // elements, rank
  std::priority_queue<Load, std::vector<Load>, std::greater<>> ranks;
  const auto n = static_cast<std::size_t>(strategy_.gpus);
  for (std::size_t r = 0; r < n; ++r) ranks.emplace(0, r);
  std::vector<Bytes> bytes(n);
  for (const auto& [elements, size] : parameters) {
    const Load least = ranks.top();
    ranks.pop();
    bytes[least.second] += size;
    ranks.emplace(least.first + elements, least.second);
  }
  return *std::max_element(bytes.begin(), bytes.end());
}

void StepWriter::declare_states() {
  states_ = {};
  declare_unit(embedding_, 1);
  for (Run& run : runs_) {
    for (std::size_t j = 0; j < run.stride(); ++j) {
      b_.at_layer(static_cast<std::uint16_t>(j));
      declare_unit(run.units[j], run.count);
    }
    b_.at_layer(0);
  }
  declare_unit(tail_, 1);
  if (parallelism_ == DataParallelism::zero_redundancy) {
    const Bytes part = largest_partition();
    partition_ = part;
    const auto persistent = [&](const char* name, Bytes bytes) {
      b_.tensor_in(models::kNoGroup, name, bytes, Category::optimizer, Residency::persistent);
      states_.optimizer += bytes;
    };
    if (strategy_.optimizer == models::Optimizer::adamw) {
      persistent("exp_avg", part);
      persistent("exp_avg_sq", part);
    } else if (strategy_.optimizer == models::Optimizer::momentum) {
      persistent("momentum_buffer", part);
    }
  }
  // DDP allocates its buckets once, for all trained parameters (reducer.cpp).
  if (parallelism_ == DataParallelism::ddp || parallelism_ == DataParallelism::zero_redundancy)
    b_.tensor_in(models::kNoGroup, "ddp.buckets", states_.gradients, Category::communication,
                 Residency::persistent);
  b_.tensor_in(models::kNoGroup, "cublas.workspace", rules_.blas_workspace, Category::workspace,
               Residency::persistent);
  // LlamaRotaryEmbedding's buffers inv_freq and original_inv_freq.
  if (d_.position == models::PositionKind::rope)
    b_.tensor_in(models::kNoGroup, "rotary.inv_freq", layer_.fp32(d_.head_dim / 2) * 2,
                 Category::parameters, Residency::persistent);
  b_.tensor_in(models::kNoGroup, "batch",
               b_.rounded(Bytes(checked_multiply(8, tokens_.total()))) * rules_.batch_tensors,
               Category::activations, Residency::persistent);
}

}  // namespace plimsoll::planner::pytorch
