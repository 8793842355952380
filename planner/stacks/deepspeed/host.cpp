// Offloading to the host: what is there, and what its transfers take on the device.
//
// Source: deepspeed 0.19.8, runtime/zero/stage_1_and_2.py and stage3.py, each found in the
// allocators' histories (tests/golden/deepspeed_offload.json).
#include <algorithm>

#include "models/optimizers.h"
#include "planner/stacks/deepspeed/engine_wrapper.h"

namespace plimsoll::planner::deepspeed {

using models::kNoGroup;

// temp_grad_buffer_for_gpu_offload: of the largest parameter, for sums of several micro-batches.
void EngineWrapper::declare_transfer() {
  const Bytes buffer = gradients(layout_.largest());
  b_.tensor_in(kNoGroup, "temp_grad_buffer_for_gpu_offload", buffer, Category::gradients,
               models::Residency::persistent);
}

// What lies beside the bucket when it has been reduced, in elements of the gradients: its copy; and
// where the rank's parts of its parameters go to the host, one after another, the fp64 copy that
// the norm is taken of (behind it the cast to the masters' dtype). Stages 1 and 2 have let the
// bucket's copy go by then. Stage 3 reads the parts back from their place on the host, and its norm
// takes 250 million elements at a time (_constant_buffered_norm2).
std::int64_t EngineWrapper::beside_bucket(std::int64_t copy, std::int64_t part,
                                          const OnTheWay* way) const {
  if (!engine_.offload.optimizer || part <= 0) return copy;
  if (optimizer_in_files() && way != nullptr && s_.last_micro())
    return copy + way->most() - way->staying();
  constexpr std::int64_t norm_at_a_time = 250'000'000;
  const std::int64_t wide = bits(DType::fp64) / bits(engine_.model);
  if (engine_.stage < 3) return std::max(copy, s_.last_micro() ? part * wide : 0);
  return copy + part + (s_.last_micro() ? std::min(part, norm_at_a_time) * wide : 0);
}

// What one rank holds in steady training.
HostMemory EngineWrapper::host() const {
  HostMemory host;
  const bool pinned = engine_.offload.pinned;
  const auto states = models::rule_of(strategy_.optimizer).states.size();
  const auto of = [](std::int64_t elements, DType dtype) {
    return storage(Count(elements), dtype);
  };
  const auto moments = [&](std::int64_t elements) {  // DeepSpeedCPUAdam's: zeros_like, pageable
    host.page(of(elements, DType::fp32) * static_cast<std::int64_t>(states));
  };
  const FlatLayout::Shards& shards = layout_.shards();
  if (engine_.offload.params) {
    // In the dtype of the first parameter that is trained.
    const DType trained = strategy_.lora ? engine_.adapters : engine_.model;
    const bool nvme = engine_.offload.nvme;
    const std::int64_t here =
        nvme ? std::min(shards.trained, engine_.options.nvme.max_in_cpu) : shards.trained;
    host.add(of(here, trained), pinned);
    for (const FlatLayout::Part& part : shards.parts)  // before they were moved there
      for (std::int64_t i = 0; i < part.count; ++i)
        if (!nvme || !goes_to_file(part.elements, engine_.model))
          host.add(of(part.elements, part.dtype), pinned);
    if (nvme) add_param_files(host);
  }
  if (!engine_.offload.optimizer) return host;
  if (engine_.stage == 3) {
    host.add(of(shards.trained, engine_.accumulation), pinned);
    if (engine_.offload.nvme) add_optimizer_files(host);
    for (const std::int64_t group : shards.sub_groups) {
      if (engine_.offload.nvme && goes_to_file(group, engine_.state)) continue;
      host.add(of(group, engine_.state), pinned);
      host.page(of(group, engine_.state));  // masters
      moments(group);
    }
    return host;
  }
  host.add(of(layout_.partition(), engine_.state), pinned);  // masters
  host.add(of(layout_.partition(), engine_.model), pinned);  // their 16-bit copy
  host.add(of(layout_.partition(), engine_.state), pinned);  // gradients
  host.add(of(layout_.largest(), engine_.model), pinned);  // temp_grad_buffer_for_cpu_offload
  moments(layout_.partition());
  if (s_.micros > 1 && engine_.stage == 2)  // accumulated_grads_in_cpu
    for (const std::int64_t elements : layout_.parameters_of(engine_.rank))
      host.add(of(elements, engine_.model), pinned);
  return host;
}

}  // namespace plimsoll::planner::deepspeed
