#include "planner/time/exchange.h"

#include <algorithm>

#include "models/decisions/sharding.h"
#include "planner/stacks/stack_info.h"

namespace plimsoll::planner {

Exchange exchange_of(const models::Strategy& s, const Execution& e) {
  const models::decisions::Sharding sharding = models::decisions::sharding_of(s);
  Exchange x;
  const models::decisions::Mesh mesh = models::decisions::mesh_of(s);
  const auto group = [&](models::decisions::Axis axis) {
    return group_of(mesh[axis].ranks, mesh[axis].stride, s.gpus_per_node);
  };
  x.shards = group(models::decisions::Axis::shard);
  x.replicas = group(models::decisions::Axis::replicate);
  x.steps_shard = sharding.stage > 0;
  stack_info(s.stack).add_exchange(s, sharding.stage, e, x);
  return x;
}

double Messages::gather(double elements) const {
  return x_.gathers ? all_gather_seconds(fabric_, x_.shards, elements * e_.gathered) : 0;
}

double Messages::reduce(double elements) const {
  const double bytes = elements * e_.reduced;
  // `all` bytes in as many messages as the bucket's size asks for.
  const auto bucketed = [&](auto seconds, const Group& group, double all) {
    const double count = x_.bucket > 0 ? std::max(1.0, all / x_.bucket) : 1;
    return count * seconds(fabric_, group, all / count);
  };
  if (x_.reduction == Exchange::Reduction::all_reduce)
    return bucketed(all_reduce_seconds, x_.shards, bytes) +
           bucketed(all_reduce_seconds, x_.replicas, bytes);
  return bucketed(reduce_scatter_seconds, x_.shards, bytes) +
         bucketed(all_reduce_seconds, x_.replicas, bytes / static_cast<double>(x_.shards.ranks));
}

double Messages::update(double elements) const {
  const double bytes = elements * e_.gathered;
  if (x_.update == Exchange::Update::gather) return all_gather_seconds(fabric_, x_.shards, bytes);
  if (x_.update == Exchange::Update::none) return 0;
  return broadcast_seconds(fabric_, x_.shards, bytes);
}

// FSDP2 copies what it gathered into one tensor for each parameter, and gradients into the message
// (_fsdp_collectives.py); DeepSpeed concatenates both.
Cost Messages::copy_out(double elements) const {
  return {0, x_.copies && x_.gathers ? 2 * elements * e_.gathered / memory_ : 0, 0};
}

Cost Messages::copy_in(double elements) const {
  return {0, x_.copies ? elements * (e_.low + e_.reduced) / memory_ : 0, 0};
}

}  // namespace plimsoll::planner
