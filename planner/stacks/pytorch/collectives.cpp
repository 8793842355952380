// The collectives of one optimizer step, as the stack issues them.
#include <algorithm>

#include "planner/stacks/pytorch/step.h"

namespace plimsoll::planner::pytorch {

// DDP: one all-reduce a bucket, at the last micro-batch; buckets are filled in reverse order of the
// parameters up to 25 MiB, the first up to 1 MiB (reducer.cpp). Their sizes differ; the mean is
// given. ZeroRedundancyOptimizer: the owner broadcasts each of its parameters after the step.
// FSDP2: an all-gather per unit and pass of every micro-batch (the tail once: it is not resharded),
// a reduce-scatter per unit at the last one; hybrid sharding all-reduces the shards across groups.
void StepWriter::add_collectives(std::vector<reports::Collective>& out) const {
  const std::int64_t ranks = strategy_.gpus;
  if (ranks == 1) return;
  const auto add = [&](const char* kind, std::int64_t count, Bytes array, std::int64_t group) {
    if (count > 0 && array > Bytes(0) && group > 1) out.push_back({kind, count, array, group});
  };
  if (parallelism_ != DataParallelism::fsdp) {
    const Bytes total = states_.gradients, first(1 << 20);
    const std::int64_t rest = std::max<std::int64_t>(0, (total - first).value());
    const std::int64_t buckets = 1 + ceil_divide(rest, strategy_.data.bucket_cap.value());
    add("all_reduce", buckets, Bytes(ceil_divide(total.value(), buckets)), ranks);
    if (parallelism_ == DataParallelism::zero_redundancy)
      add("broadcast", 1, states_.parameters, ranks);
    return;
  }
  const bool resharded = strategy_.data.zero >= 3;
  const auto unit = [&](const Unit& u, std::int64_t count, bool twice) {
    if (u.empty()) return;
    add("all_gather", count * batch_.grad_accum * (twice ? 2 : 1), u.gathered, shards_);
    add("reduce_scatter", count, u.reduce_input, shards_);
    add("all_reduce", count, u.reduce_output, ranks / shards_);
  };
  unit(embedding_, 1, embedding_.reshards);
  for (const Run& run : runs_)
    for (std::size_t j = 0; j < run.plans.size(); ++j)
      unit(run.units[j], run.count * static_cast<std::int64_t>(run.stride() / run.plans.size()),
           resharded);
  unit(tail_, 1, false);
  unit(root_, 1, false);
}

}  // namespace plimsoll::planner::pytorch
