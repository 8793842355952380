// deepspeed.initialize(): what goes through the allocator before the first step, and stays in its
// cache as segments.
//
// Source: deepspeed 0.19.8, runtime/zero/stage_1_and_2.py (__init__, initialize_optimizer_states),
// runtime/fp16/fused_optimizer.py, runtime/zero/stage3.py (_create_fp32_partitions,
// initialize_optimizer_states), each found in the allocator's history
// (tools/oracle/deepspeed_measure.py --start CASE).
#include "models/optimizers.h"
#include "planner/stacks/deepspeed/engine_wrapper.h"
#include "planner/stacks/deepspeed/fetches.h"

namespace plimsoll::planner::deepspeed {

// Stages 0 to 2: the parameters as they were built lie beside the flat buffer that takes their
// place until it is there (stage 0 flattens clones of them). The cache was emptied before, when
// nothing was in it yet.
void EngineWrapper::flattened_start(Start& start) const {
  start
      .let_go_where_short();  // the engine moves its parameters to the host before it flattens them
  const auto parameters = [&] {
    for (const FlatLayout::Block& block : layout_.blocks())
      for (std::int64_t i = 0; i < block.count; ++i)
        for (const std::int64_t elements : block.parameters) start.hold(gradients(elements));
  };
  for (const TensorId frozen : frozen_) start.take(frozen);
  parameters();
  const std::int32_t built = start.held();
  if (engine_.wrapper == OptimizerWrapper::fused) parameters();
  start.take(flat_);
  if (engine_.wrapper == OptimizerWrapper::fused) start.drop(built, start.held() - 1);
  start.drop(0, built - 1);
}

Bytes EngineWrapper::whole_of(const Parameter& p) const {
  return b_.rounded(storage(Count(p.elements), layout_.stored(p)));
}

// This rank's.
Bytes EngineWrapper::part_of(const Parameter& p) const {
  return b_.rounded(storage(Count(ceil_divide(p.elements, engine_.ranks)), layout_.stored(p)));
}

// A base as it is packed, one weight after another: in 16 bits, its scales and tables, which stay,
// and packed. Adapters come behind it. What is held, in the order of the model.
std::vector<std::int32_t> EngineWrapper::build_whole_base(Start& start) const {
  std::vector<std::int32_t> whole;
  auto kept = frozen_.begin();
  for (const FlatLayout::Block& block : layout_.blocks()) {
    std::vector<std::pair<decltype(kept), decltype(kept)>> beside;
    for (const Parameter& p : block.all) {
      const auto first = kept;
      const auto tensors =
          p.trainable ? 0 : std::ssize(beside_packed(p, strategy_)) + (keeps_copy(p) ? 1 : 0);
      check(frozen_.end() - kept >= tensors, ErrorKind::internal, "declare_frozen has them");
      kept += tensors;
      beside.emplace_back(first, kept);
    }
    for (std::int64_t i = 0; i < block.count; ++i)
      for (std::size_t j = 0; j < block.all.size(); ++j) {
        const Parameter& p = block.all[j];
        std::int32_t unpacked = -1;
        if (p.packed != nullptr)
          unpacked = start.hold(storage(Count(p.unpacked.values()), engine_.model));
        for (auto of = beside[j].first; of != beside[j].second; ++of)
          if (*of != kNoTensor) start.take_instance(*of, block.count > 1 ? i : -1);
        whole.push_back(p.adapter ? -1 : start.hold(whole_of(p)));
        if (unpacked >= 0) start.drop(unpacked);
      }
  }
  for (; kept != frozen_.end(); ++kept) start.take(*kept);
  std::size_t at = 0;
  for (const FlatLayout::Block& block : layout_.blocks())
    for (std::int64_t i = 0; i < block.count; ++i)
      for (const Parameter& p : block.all)
        if (std::int32_t& held = whole[at++]; held < 0) held = start.hold(whole_of(p));
  return whole;
}

// Stage 3: a packed base is built whole on each GPU, and then cut, one parameter after another, in
// the places that others left (Transformers makes no zero.Init around it). The frozen ones' parts
// stay there; the trained ones' go to the host, the cache is emptied, and they come back as one
// (zero/utils.py, defragment).
void EngineWrapper::cut_whole_base(Start& start) const {
  const std::vector<std::int32_t> whole = build_whole_base(start);
  std::vector<std::int32_t> trained;
  std::size_t at = 0;
  for (const FlatLayout::Block& block : layout_.blocks())
    for (std::int64_t i = 0; i < block.count; ++i)
      for (std::size_t j = 0; j < block.all.size(); ++j) {
        const Parameter& p = block.all[j];
        if (!engine_.offload.params || block.persistent[j]) {
          if (p.trainable)
            trained.push_back(start.hold(part_of(p)));
          else
            start.keep(part_of(p));
        }
        start.drop(whole[at++]);
      }
  for (const std::int32_t part : trained) start.drop(part);
  start.flush();
}

void EngineWrapper::sharded_start(Start& start) const {
  if (strategy_.quantize)
    cut_whole_base(start);
  else
    for (const TensorId frozen : frozen_) start.take(frozen);
  if (flat_ != kNoTensor) start.take(flat_);
  if (engine_.ranks > 1 || engine_.offload.params)
    start.set_gathers(gather_requests(parts_, layout_, engine_, strategy_, s_.micros > 1));
}

// A copy of each sub-group, of which its masters are a clone; it goes when the next one is there
// (_create_fp32_partitions).
void EngineWrapper::masters_by_sub_group(Start& start) const {
  std::int32_t copy = -1;
  for (const std::int64_t elements : layout_.shards().sub_groups) {
    const std::int32_t next = start.hold(bytes(elements, engine_.state));
    if (copy >= 0) start.drop(copy);
    start.keep(bytes(elements, engine_.state));
    copy = next;
  }
  if (copy >= 0) start.drop(copy);
}

// Masters are cast from a copy; then gradients of zeros for the optimizer stand once, for its
// states (only stage 0 steps with them, so that the states come then).
void EngineWrapper::add_start(Start& start) const {
  if (engine_.wrapper == OptimizerWrapper::plain || engine_.wrapper == OptimizerWrapper::unfused)
    return;
  const bool partitioned = engine_.wrapper == OptimizerWrapper::stage_1_and_2;
  const bool sharded = engine_.wrapper == OptimizerWrapper::stage3;
  if (sharded)
    sharded_start(start);
  else
    flattened_start(start);
  const std::int64_t masters = partitioned ? layout_.partition()
                               : sharded   ? layout_.shards().sub_group
                                           : layout_.total();
  const bool cast = engine_.state != engine_.model;
  if (engine_.offload.optimizer) {  // a clone goes to the host; stage 3 copies the shards there
    if (!sharded) start.drop(start.hold(gradients(masters)));
    return;
  }
  if (sharded) {
    masters_by_sub_group(start);
  } else if (cast) {
    const std::int32_t copy = start.hold(gradients(masters));
    start.take(masters_);
    start.drop(copy);
  } else {
    start.take(masters_);
  }
  const std::int32_t zeros = start.hold(bytes(masters, engine_.state));
  const auto states = static_cast<TensorId>(models::rule_of(strategy_.optimizer).states.size());
  if (engine_.wrapper == OptimizerWrapper::fused && states > 0)
    start.take(masters_ + 1, masters_ + states);
  start.drop(zeros);
}

}  // namespace plimsoll::planner::deepspeed
