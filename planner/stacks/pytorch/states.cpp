// What lives between steps: parameters, optimizer states, DDP's buckets; and the sizes of units.
#include <algorithm>
#include <numeric>
#include <queue>
#include <span>

#include "models/optimizers.h"
#include "models/storages.h"
#include "planner/stacks/pytorch/step.h"

namespace plimsoll::planner::pytorch {

using models::Residency;

DType StepWriter::stored(const Parameter& p) const {
  if (p.packed != nullptr) return strategy_.quantize->held_in;
  if (p.bias_of_packed) return regime_.compute;
  if (p.adapter && strategy_.quantize) return strategy_.lora->dtype;  // no upcast (regime.h)
  if (p.adapter) return regime_.adapter == strategy_.lora->dtype ? regime_.adapter : regime_.stored;
  // Accelerate upcasts trainable parameters only.
  if (!p.trainable && !models::kbit_prepared(strategy_) && strategy_.param_dtype)
    return *strategy_.param_dtype;
  return regime_.stored;
}

DType StepWriter::seen(const Parameter& p) const {
  if (p.packed != nullptr) return strategy_.quantize->held_in;
  if (p.bias_of_packed) return regime_.compute;
  return p.adapter ? regime_.adapter : regime_.weight;
}

// Which of FSDP2's units the parameters outside the layers belong to (FsdpUnits). Without FSDP2 the
// unit is only a place to keep gradients in: root_.
void StepWriter::plan_end_units() {
  const std::int64_t table = checked_multiply(d_.vocab, d_.table_width());
  const bool tied = d_.tied_head, accelerate = rules_.fsdp_units == FsdpUnits::accelerate;
  const bool ends = rules_.fsdp_units == FsdpUnits::ends;
  table_unit_ = fsdp() && (accelerate || ends) ? &embedding_ : &root_;
  head_unit_ = tied ? table_unit_ : fsdp() && (accelerate || ends) ? &tail_ : &root_;
  norm_unit_ = fsdp() && accelerate ? head_unit_ : &root_;
  const auto add = [&](Unit* unit, const Parameter& p) {
    (unit == &root_        ? root_parameters_
     : unit == &embedding_ ? embedding_parameters_
                           : tail_parameters_)
        .push_back(p);
  };
  for (const Parameter& p : parts_.embedding) add(p.elements == table ? table_unit_ : &root_, p);
  for (const Parameter& p : parts_.tail)
    add(p.elements != table ? norm_unit_ : tied ? table_unit_ : head_unit_, p);
  size_unit(root_, root_parameters_, models::kNoGroup);
  size_unit(embedding_, embedding_parameters_, models::kNoGroup);
  size_unit(tail_, tail_parameters_, models::kNoGroup);
  // What holds the head serves the backward with what the forward gathered.
  embedding_.reshards = strategy_.data.zero >= 3 && norm_unit_ != &embedding_;
  tail_is_head_ = norm_unit_ != &tail_;
  loss_prefetches_ = head_unit_ == &root_ || (tied && norm_unit_ != &embedding_);
}

// The rank's part of one parameter. FSDP2 shards axis 0 and every rank holds ceil(rows / N) rows,
// a padded one included (_fsdp_param.py, _init_sharded_param).
Bytes StepWriter::local(const Parameter& p, DType dtype) const {
  const std::int64_t rows = ceil_divide(p.rows, shards_);
  return b_.rounded(storage(Count(checked_multiply(rows, p.elements / p.rows)), dtype));
}

// Of a rank's rows those that are not padding (torch.chunk): the last ranks may have fewer, or
// none.
std::int64_t StepWriter::own_rows(const Parameter& p, std::int64_t rank) const {
  const std::int64_t rows = ceil_divide(p.rows, shards_);
  return std::clamp<std::int64_t>(p.rows - rank % shards_ * rows, 0, rows);
}

// What the optimizer has of the rank's part: states are made like the sharded parameter without
// its padding (DTensor's local tensor).
models::SteppedTensor StepWriter::own_part(const Parameter& p) const {
  const std::int64_t row = p.elements / p.rows;
  return {.elements = checked_multiply(own_rows(p, rank()), row),
          .dtype = stored(p),
          .rows = row == p.columns ? p.rows
                  : p.columns > 0  ? row / p.columns
                                   : 0,
          .columns = p.columns,
          .embedding = p.embedding,
          .hidden = p.hidden};
}

std::vector<std::int64_t> StepWriter::held_by(std::int64_t rank) const {
  std::vector<std::int64_t> held;
  if (parallelism_ == DataParallelism::zero_redundancy && !shares_.empty())
    held.push_back(shares_[static_cast<std::size_t>(rank)].value());
  if (!fsdp()) return held;
  const auto all = [&](const Unit& unit) {
    if (unit.empty()) return;
    for (const Parameter& p : *unit.parameters)
      if (p.trainable) held.push_back(own_rows(p, rank));
  };
  all(root_);
  all(embedding_);
  for (const Run& run : runs_)
    for (std::size_t j = 0; j < run.plans.size(); ++j) all(run.units[j]);
  all(tail_);
  return held;
}

std::vector<RanksAlike> StepWriter::ranks() const {
  const std::int64_t group = parallelism_ == DataParallelism::zero_redundancy ? strategy_.gpus
                             : fsdp()                                         ? shards_
                                                                              : 1;
  return ranks_alike(strategy_.gpus, group, [&](std::int64_t rank) { return held_by(rank); });
}

// The copy into the reduce-scatter's input (_chunk_cat, ATen/native/cuda/TensorShape.cu) reads a
// table of 8-byte entries: 6 a gradient, 2 more, and one per 2 KiB of every gradient's part.
void StepWriter::size_unit(Unit& unit, const std::vector<Parameter>& parameters,
                           models::GroupId group) {
  unit = {};
  unit.parameters = &parameters;
  unit.group = group;
  unit.reshards = strategy_.data.zero >= 3 && group != models::kNoGroup;
  if (!fsdp() || parameters.empty()) return;
  constexpr std::int64_t kChunkCatBlock = 2048;
  Bytes gathered, cast, reduced, wanted;  // of this rank's shards
  bool converts = false;
  std::int64_t blocks = 0, trained = 0;
  for (const Parameter& p : parameters) {
    const std::int64_t shard = checked_multiply(ceil_divide(p.rows, shards_), p.elements / p.rows);
    const DType dtype = seen(p);
    const DType reduce = strategy_.data.reduce_dtype.value_or(p.adapter ? dtype : regime_.reduce);
    unit.full += b_.rounded(storage(Count(checked_multiply(shard, shards_)), dtype));
    gathered += storage(Count(shard), dtype);
    // From the host each shard comes in a block of its own, and is cast there.
    if (strategy_.offload.params)
      cast += b_.rounded(storage(Count(shard), dtype));
    else if (stored(p) != dtype)
      cast += storage(Count(shard), dtype);
    if (!p.trainable) continue;
    reduced += storage(Count(shard), reduce);
    blocks += ceil_divide(storage(Count(shard), reduce).value(), kChunkCatBlock);
    ++trained;
    wanted += storage(Count(shard), stored(p));
    converts = converts || reduce != stored(p);
  }
  if (shards_ > 1) unit.gathered = b_.rounded(gathered * shards_);
  unit.cast = b_.rounded(cast);
  unit.reduce_input = b_.rounded(reduced * shards_);
  unit.reduce_output = b_.rounded(reduced);
  unit.copy_table = b_.rounded(Bytes(8 * (blocks + 6 * trained + 2)));
  if (converts) unit.shard_grad_cast = b_.rounded(wanted);
}

// What `full` is made of: FSDP2 copies each parameter out of the gathered ones.
std::vector<Bytes> StepWriter::full_parts(const Unit& unit) const {
  std::vector<Bytes> parts;
  for (const Parameter& p : *unit.parameters) {
    const std::int64_t rows = checked_multiply(ceil_divide(p.rows, shards_), shards_);
    const Count elements(checked_multiply(rows, p.elements / p.rows));
    parts.push_back(b_.rounded(storage(elements, seen(p))));
  }
  return parts;
}

// What belongs to a packed weight is no parameter: no wrapper shards or offloads it.
Bytes StepWriter::declare_scales(const Unit& unit, const Parameter& p) {
  Bytes all;
  for (const models::PackedTensor& tensor : beside_packed(p, strategy_)) {
    const Bytes bytes = b_.rounded(tensor.bytes());
    all += bytes;
    if (rules_.each_parameter)
      b_.tensor_in(unit.group, "parameters", bytes, Category::parameters, Residency::persistent);
  }
  return all;
}

void StepWriter::declare_scales(const Unit& unit, std::int64_t copies) {
  Bytes all;
  for (const Parameter& p : *unit.parameters) all += declare_scales(unit, p);
  if (!rules_.each_parameter && all != Bytes(0))
    b_.tensor_in(unit.group, "parameters", all, Category::parameters, Residency::persistent);
  states_.parameters += all * copies;
}

// Persistent tensors of one unit; `copies` of them.
void StepWriter::declare_unit(Unit& unit, std::int64_t copies) {
  if (unit.empty()) return;
  const bool sharded = fsdp();
  const bool partitioned = parallelism_ == DataParallelism::zero_redundancy;  // see declare_states
  Bytes parameters, gradients;
  models::KeptStates states;
  if (strategy_.offload.params) {
    declare_on_host(unit, copies);
    return declare_scales(unit, copies);
  }
  const auto declare = [&](Bytes weights, const models::KeptStates& kept) {
    b_.tensor_in(unit.group, "parameters", weights, Category::parameters, Residency::persistent);
    optimizer_.declare(unit.group, kept);
  };
  for (const Parameter& p : *unit.parameters) {
    const Bytes bytes = local(p, stored(p));
    models::KeptStates kept;
    if (p.trainable) {
      const models::SteppedTensor own = own_part(p);
      if (!partitioned) kept = optimizer_.kept_of(own);
      if (optimizer_.lists(own)) unit.listed += optimizer_.size_of(own);
      gradients += sharded ? bytes : b_.rounded(storage(Count(p.elements), stored(p)));
    }
    parameters += bytes;
    if (rules_.each_parameter) declare(bytes, kept);
    for (const models::KeptState& state : kept) states.merge(state);
    parameters += declare_scales(unit, p);
  }
  if (!rules_.each_parameter) declare(parameters, states);
  optimizer_.count(states, copies);
  states_.parameters += parameters * copies;
  states_.gradients += gradients * copies;
}

namespace {

using Sizes = std::vector<std::pair<std::int64_t, Bytes>>;  // elements and bytes of parameters

// ZeroRedundancyOptimizer gives whole parameters to ranks: largest first, each to the rank that has
// least (zero_redundancy_optimizer.py, _partition_parameters).
using Shares = std::vector<std::vector<Bytes>>;  // of ranks
Shares partitioned(Sizes parameters, std::size_t gpus) {
  std::stable_sort(parameters.begin(), parameters.end(),
                   [](const auto& a, const auto& b) { return a.first > b.first; });
  using Load = std::pair<std::int64_t, std::size_t>;  // elements, rank
  std::priority_queue<Load, std::vector<Load>, std::greater<>> ranks;
  // More ranks than parameters: the largest has a rank of its own, and the last ranks have none.
  for (std::size_t r = 0; r < std::min(gpus, parameters.size()); ++r) ranks.emplace(0, r);
  Shares shares(gpus);
  for (const auto& [elements, size] : parameters) {
    const Load least = ranks.top();
    ranks.pop();
    shares[least.second].push_back(size);
    ranks.emplace(least.first + elements, least.second);
  }
  return shares;
}

Bytes sum(const std::vector<Bytes>& all) {
  return std::accumulate(all.begin(), all.end(), Bytes(0));
}

struct Partition {
  Shares shares;
  std::vector<Bytes> totals;  // of ranks
};

// A search asks about the same parameters on as many GPUs again and again.
const Partition& known_partition(const Sizes& parameters, std::size_t gpus) {
  struct Known {
    Sizes parameters;
    std::size_t gpus = 0;
    Partition partition;
  };
  thread_local Known known;
  if (known.gpus != gpus || known.parameters != parameters) {
    known = {parameters, gpus, {partitioned(parameters, gpus), {}}};
    for (const auto& share : known.partition.shares) known.partition.totals.push_back(sum(share));
  }
  return known.partition;
}

}  // namespace

// Whole parameters to ranks; the written rank is the one that has most, unless one is asked for.
void StepWriter::choose_partition() {
  Sizes parameters;
  const auto add = [&](const Unit& unit, std::int64_t copies) {
    for (const Parameter& p : *unit.parameters)
      for (std::int64_t i = 0; p.trainable && i < copies; ++i)
        parameters.emplace_back(p.elements, b_.rounded(storage(Count(p.elements), stored(p))));
  };
  for (const Run& run : runs_) {
    const std::size_t period = run.plans.size();
    const std::int64_t copies = run.count * static_cast<std::int64_t>(run.stride() / period);
    for (std::size_t j = 0; j < period; ++j) add(run.units[j], copies);
  }
  add(root_, 1);
  const Partition& known = known_partition(parameters, static_cast<std::size_t>(strategy_.gpus));
  shares_ = known.totals;
  if (rules_.rank < 0)
    rules_.rank = std::max_element(shares_.begin(), shares_.end()) - shares_.begin();
  partition_ = known.shares[static_cast<std::size_t>(rules_.rank)];
}

std::vector<Bytes> StepWriter::partition_blocks() const {
  if (rules_.each_parameter || partition_.empty()) return partition_;
  return {sum(partition_)};
}

void StepWriter::declare_states() {
  states_ = {};
  host_ = {};
  optimizer_.clear();
  declare_unit(root_, 1);
  declare_unit(embedding_, 1);
  for (Run& run : runs_) {
    for (std::size_t j = 0; j < run.stride(); ++j) {
      b_.at_layer(static_cast<std::uint16_t>(j));
      declare_unit(run.units[j], run.count);
    }
    b_.at_layer(0);
  }
  declare_unit(tail_, 1);
  // The values that packed scales stand for, which functional.py keeps beside each weight's own.
  if (strategy_.quantize && strategy_.quantize->storage->doubly_quantized()) {
    const Bytes table =
        b_.rounded(storage(Count(strategy_.quantize->storage->scale_table), DType::fp32));
    b_.tensor_in(models::kNoGroup, "name2qmap", table, Category::parameters, Residency::persistent);
    states_.parameters += table;
  }
  optimizer_.declare_tables();
  states_.optimizer = optimizer_.in_allocator();
  if (parallelism_ == DataParallelism::zero_redundancy) {
    choose_partition();
    for (const Bytes part : partition_blocks())
      for (const models::StateTensor& kept : models::rule_of(strategy_.optimizer).states) {
        b_.tensor_in(models::kNoGroup, name_of(kept.name), part, Category::optimizer,
                     Residency::persistent);
        states_.optimizer += part;
      }
  }
  if (parallelism_ == DataParallelism::ddp || parallelism_ == DataParallelism::zero_redundancy)
    declare_buckets();
  declare_inputs();
}

// Autograd's thread multiplies with a bias where it runs a forward again.
Bytes workspaces_in_all(const BlasWorkspaces& blas, const models::Strategy& strategy) {
  return blas.forward + blas.backward + blas.lt * (repeats_layers(strategy.recompute) ? 2 : 1);
}

// What was written in each thread's first product takes them, and they stay.
void StepWriter::declare_workspaces() {
  const auto workspace = [&](const char* name, Bytes bytes) {
    return b_.tensor_in(models::kNoGroup, name, bytes, Category::workspace, Residency::persistent);
  };
  workspaces_.fill(kNoTensor);
  if (!rules_.each_parameter) {
    workspace("cublas.workspace", workspaces_in_all(rules_.blas, strategy_));
    return;
  }
  const Bytes lt = rules_.blas.lt;  // see workspaces_in_all
  workspaces_ = {workspace("cublas.workspace", rules_.blas.forward),
                 workspace("cublas.workspace.backward", rules_.blas.backward),
                 workspace("cublaslt.workspace", lt),
                 workspace("cublaslt.workspace.backward",
                           repeats_layers(strategy_.recompute) ? lt : Bytes(0))};
  layer_.set_workspaces(workspaces_);
}

// What stays beside the model's states: workspaces, tables, the batch.
void StepWriter::declare_inputs() {
  if (!b_.resizes()) inputs_ = b_.place();
  declare_workspaces();
  if (d_.bare)  // torchtitan's freqs_cis: as many rows as a sequence has tokens
    b_.tensor_in(models::kNoGroup, "rotary.freqs_cis",
                 layer_.fp32(checked_multiply(tokens_.length, d_.head_dim)), Category::parameters,
                 Residency::persistent);
  // LlamaRotaryEmbedding's buffers inv_freq and original_inv_freq, which were one before 5.0.
  if (d_.position == models::PositionKind::rope && !d_.bare)
    b_.tensor_in(models::kNoGroup, "rotary.inv_freq",
                 layer_.bytes(d_.rotated() / 2, buffer_dtype()) *
                     (strategy_.transformers < models::kRotaryCopiesFrequencies ? 1 : 2) *
                     (d_.has_both_rotaries() ? 2 : 1),
                 Category::parameters, Residency::persistent);
  // GPT2Attention's causal masks, of booleans, one for each layer.
  if (d_.fused_qkv && strategy_.transformers < models::kGpt2WithoutMasks)
    b_.tensor_in(
        models::kNoGroup, "attention.bias",
        b_.rounded(Bytes(checked_multiply(parts_.position_rows, parts_.position_rows))) * d_.layers,
        Category::parameters, Residency::persistent);
  if (d_.causal_table)
    b_.tensor_in(models::kNoGroup, "causal_table",
                 b_.rounded(Bytes(checked_multiply(parts_.position_rows, parts_.position_rows))),
                 Category::parameters, Residency::persistent);
  // BertEmbeddings' position_ids and token_type_ids.
  if (d_.token_types > 0)
    b_.tensor_in(models::kNoGroup, "embeddings.ids", id_buffers(), Category::parameters,
                 Residency::persistent);
  b_.tensor_in(models::kNoGroup, "batch",
               b_.rounded(Bytes(checked_multiply(8, tokens_.total()))) * rules_.batch_tensors,
               Category::activations, Residency::persistent);
}

}  // namespace plimsoll::planner::pytorch
