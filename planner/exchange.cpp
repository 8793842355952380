#include "planner/exchange.h"

#include <algorithm>

#include "models/decisions/sharding.h"

namespace plimsoll::planner {

using models::Stack;

namespace {

// DDP: buckets beside backward. ZeroRedundancyOptimizer is DDP, and owners broadcast what they
// stepped. FSDP2: units; the last micro-batch reduces.
void as_pytorch(const models::Strategy& s, int stage, Exchange& x) {
  x.bucket = s.data.bucket_cap.real();
  if (stage == 1) {  // always over all ranks
    x.update = Exchange::Update::broadcast;
    x.shards = group_of(s.gpus, 1, s.gpus_per_node);
    x.replicas = {};
  }
  if (s.data.zero < 2) return;
  x.bucket = 0;
  x.reduction = Exchange::Reduction::scatter;
  x.gathers = true;
  x.regathers = stage == 3;
  x.copies = s.data.fsdp_version == 2;
}

void as_plimsoll(const models::Strategy& s, int stage, Exchange& x) {
  x.bucket = s.data.bucket_cap.real();
  if (stage == 0) return;
  x.reduction = Exchange::Reduction::scatter;
  x.gathers = x.regathers = stage == 3;
  x.reduces_each = stage >= 2;
  if (stage < 3) x.update = Exchange::Update::gather;
}

// Without overlap_comm stages 1 and 2 wait for each bucket; stage 0 reduces when backward is done
// (engine.py, buffered_allreduce_fallback).
void as_deepspeed(const models::Strategy& s, int stage, const Execution& e, Exchange& x) {
  x.bucket = static_cast<double>(s.data.deepspeed.reduce_bucket_size) * e.reduced;
  x.overlaps = stage > 0 && s.data.deepspeed.overlap_comm.value_or(stage == 3);
  x.reduces_each = stage >= 2;
  if (stage == 3) {
    x.reduction = Exchange::Reduction::scatter;
    x.gathers = x.regathers = x.copies = true;
  } else if (stage > 0) {
    x.update = Exchange::Update::gather;
  }
}

}  // namespace

Exchange exchange_of(const models::Strategy& s, const Execution& e) {
  const models::decisions::Sharding sharding = models::decisions::sharding_of(s);
  Exchange x;
  x.shards = group_of(sharding.shards, 1, s.gpus_per_node);
  x.replicas = group_of(sharding.replicas, sharding.shards, s.gpus_per_node);
  x.steps_shard = sharding.stage > 0;
  if (s.stack == Stack::plimsoll)
    as_plimsoll(s, sharding.stage, x);
  else if (s.stack == Stack::deepspeed)
    as_deepspeed(s, sharding.stage, e, x);
  else
    as_pytorch(s, sharding.stage, x);
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
