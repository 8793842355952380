// What lives between steps where parameters stand one by one: they, and the optimizer's states.
#include "models/host_optimizer.h"
#include "models/optimizers.h"
#include "models/storages.h"
#include "planner/stacks/pytorch/wrappers/torch_wrapper.h"

namespace plimsoll::planner::pytorch {

using models::Residency;

// The rank's part of one parameter. FSDP2 shards axis 0 and every rank holds ceil(rows / N) rows,
// a padded one included (_fsdp_param.py, _init_sharded_param).
SymBytes TorchWrapper::local(const Parameter& p, DType dtype) const {
  const SymInt rows = ceil_divide(p.rows, s_.shards);
  return b_.rounded(storage(rows * (p.elements / p.rows), dtype));
}

// Of a rank's rows those that are not padding (torch.chunk): the last ranks may have fewer, or
// none.
SymInt TorchWrapper::own_rows(const Parameter& p, std::int64_t rank) const {
  const SymInt rows = ceil_divide(p.rows, s_.shards);
  if (rank == 0) return rows;
  return smaller(larger(p.rows - rank % s_.shards * rows, 0), rows);
}

// What the optimizer has of the rank's part: states are made like the sharded parameter without
// its padding (DTensor's local tensor).
OwnPart TorchWrapper::own_part(const Parameter& p) const {
  const std::int64_t row = p.elements / p.rows;
  const SymInt elements = own_rows(p, s_.rank()) * row;
  models::SteppedTensor own{.elements = elements.now(),
                            .dtype = s_.stored(p),
                            .rows = row == p.columns ? p.rows
                                    : p.columns > 0  ? row / p.columns
                                                     : 0,
                            .columns = p.columns,
                            // torchtune and LitGPT do not tell bitsandbytes which it is.
                            .embedding = p.embedding && !models::is_torchtune(strategy_.code) &&
                                         !models::is_litgpt(strategy_.code),
                            .hidden = p.hidden};
  if (models::rule_of(strategy_.optimizer).torch.projects_to == 0) return {own, elements};
  own.elements = elements;
  own.rank = models::rank_of(strategy_, own);
  return own;
}

// What belongs to a packed weight is no parameter: no wrapper shards or offloads it.
Bytes TorchWrapper::declare_scales(const Unit& unit, const Parameter& p) {
  Bytes all;
  for (const models::PackedTensor& tensor : beside_packed(p, strategy_)) {
    const Bytes bytes = b_.rounded(tensor.bytes());
    all += bytes;
    if (rules_.each_parameter)
      b_.tensor_in(unit.group, "parameters", bytes, Category::parameters, Residency::persistent);
  }
  return all;
}

void TorchWrapper::declare_scales(const Unit& unit, std::int64_t copies) {
  Bytes all;
  for (const Parameter& p : *unit.parameters) all += declare_scales(unit, p);
  if (!rules_.each_parameter && all != Bytes(0))
    b_.tensor_in(unit.group, "parameters", all, Category::parameters, Residency::persistent);
  s_.states.parameters += all * copies;
}

// CPUOffloadPolicy: each shard pinned as it is padded, its gradient as DTensor's local part (what a
// copy to the host that does not block allocates); states are made like the shard, pageable.
void TorchWrapper::declare_on_host(const Unit& unit, std::int64_t copies) {
  const auto add = [&](SymBytes bytes, bool pinned) {  // no part of the program
    for (std::int64_t i = 0; i < copies; ++i) s_.host.add(bytes.now(), pinned);
  };
  for (const Parameter& p : *unit.parameters) {
    const std::int64_t row = p.elements / p.rows;
    const SymInt padded = ceil_divide(p.rows, s_.shards) * row;
    add(storage(padded, s_.stored(p)), strategy_.offload.pinned);
    if (!p.trainable) continue;
    const OwnPart own = own_part(p);
    add(storage(own.elements(), s_.stored(p)), strategy_.offload.pinned);
    keep_on_host(own.now(), copies);
  }
}

// The optimizer's states of a parameter, pageable.
void TorchWrapper::keep_on_host(const models::SteppedTensor& own, std::int64_t copies) {
  for (const models::KeptState& state : models::kept_states(strategy_, own))
    for (std::int64_t i = 0; i < copies; ++i) s_.host.add(state.bytes, false);
}

// Of a parameter that is stepped there: the pinned copy, its pinned gradient, and the states.
void TorchWrapper::step_on_host(const OwnPart& own, std::int64_t copies) {
  for (std::int64_t i = 0; i < 2 * copies; ++i)
    s_.host.pin(storage(own.elements(), own.now().dtype).now());
  keep_on_host(own.now(), copies);
}

// Persistent tensors of one unit; `copies` of them.
void TorchWrapper::declare_unit(Unit& unit, std::int64_t copies, bool with_states) {
  if (unit.empty()) return;
  SymBytes parameters, gradients;
  KeptStates states;
  if (strategy_.offload.params) {
    declare_on_host(unit, copies);
    return declare_scales(unit, copies);
  }
  const bool on_host = models::rule_of(strategy_.optimizer).torch.on_host;
  const auto declare = [&](SymBytes weights) {
    b_.tensor_in(unit.group, "parameters", weights, Category::parameters, Residency::persistent);
  };
  for (const Parameter& p : *unit.parameters) {
    const SymBytes bytes = local(p, s_.stored(p));
    KeptStates kept;
    if (p.trainable) {
      const OwnPart own = own_part(p);
      const bool host_steps = models::steps_on_host(strategy_, p.elements);
      if (with_states && !on_host && !host_steps) kept = optimizer_.kept_of(own);
      if (on_host) keep_on_host(own.now(), copies);
      if (host_steps) step_on_host(own, copies);
      if (optimizer_.lists(own)) unit.listed += optimizer_.size_of(own);
      if (!host_steps || !strategy_.offload.gradients) gradients += bytes;
    }
    parameters += bytes;
    if (rules_.each_parameter) {
      declare(bytes);
      const bool turns = strategy_.optimizer_in_backward || optimizer_.makes_in_turn();
      if (turns && p.trainable)
        optimizer_.declare(unit.group, own_part(p), kept);
      else
        optimizer_.declare(unit.group, kept);
    }
    for (const KeptState& state : kept) states.merge(state);
    parameters += declare_scales(unit, p);
  }
  if (!rules_.each_parameter) {
    declare(parameters);
    optimizer_.declare(unit.group, states);
  }
  optimizer_.count(states, copies);
  s_.states.parameters += parameters.now() * copies;
  s_.states.gradients += gradients.now() * copies;
}

void TorchWrapper::each_unit(const std::function<void(const Unit&)>& what) const {
  what(s_.root);
  what(s_.embedding);
  for (const Run& run : s_.runs)
    for (const Unit& unit : run.units) what(unit);
  what(s_.tail);
}

void TorchWrapper::declare_units(const DeclareUnit& declare) {
  s_.host = {};
  optimizer_.clear();
  declare(s_.root, 1);
  declare(s_.embedding, 1);
  for (Run& run : s_.runs) {
    for (std::size_t j = 0; j < run.stride(); ++j) {
      b_.at_layer(static_cast<std::uint16_t>(j));
      declare(run.units[j], run.count);
    }
    b_.at_layer(0);
  }
  declare(s_.tail, 1);
  // The values that packed scales stand for, which functional.py keeps beside each weight's own.
  if (strategy_.quantize && strategy_.quantize->storage->doubly_quantized()) {
    const Bytes table =
        b_.rounded(storage(Count(strategy_.quantize->storage->scale_table), DType::fp32));
    b_.tensor_in(models::kNoGroup, "name2qmap", table, Category::parameters, Residency::persistent);
    s_.states.parameters += table;
  }
  optimizer_.declare_tables();
  s_.states.optimizer = optimizer_.in_allocator();
}

}  // namespace plimsoll::planner::pytorch
