// deepspeed.initialize(): what goes through the allocator before the first step, and stays in its
// cache as segments.
//
// Source: deepspeed 0.19.8, runtime/zero/stage_1_and_2.py (__init__, initialize_optimizer_states),
// runtime/fp16/fused_optimizer.py, runtime/zero/stage3.py (_create_fp32_partitions,
// initialize_optimizer_states), each found in the allocator's history
// (tools/oracle/deepspeed_measure.py --start CASE).
#include "models/optimizers.h"
#include "planner/stacks/deepspeed/engine_wrapper.h"

namespace plimsoll::planner::deepspeed {

// Stages 0 to 2: the parameters as they were built lie beside the flat buffer that takes their
// place until it is there (stage 0 flattens clones of them). The cache was emptied before, when
// nothing was in it yet.
void EngineWrapper::flattened_start(Start& start) const {
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

// Stage 3: a packed base is built whole on each GPU, and then cut (Transformers makes no zero.Init
// around it).
void EngineWrapper::sharded_start(Start& start) const {
  const std::int32_t built = start.held();
  for (const TensorId frozen : frozen_) start.take(frozen);
  if (strategy_.quantize)
    for (const FlatLayout::Block& block : layout_.blocks())
      for (std::int64_t i = 0; i < block.count; ++i)
        for (const Parameter& p : block.all)
          start.hold(b_.rounded(storage(Count(p.elements), layout_.stored(p))));
  if (flat_ != kNoTensor) start.take(flat_);
  if (start.held() > built) start.drop(built, start.held() - 1);
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
  if (cast || sharded) {
    const std::int32_t copy =
        start.hold(sharded ? bytes(masters, engine_.state) : gradients(masters));
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
