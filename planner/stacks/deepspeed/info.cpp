// What the rest of the planner is told of stack deepspeed.
#include "planner/stacks/deepspeed/engine.h"
#include "planner/stacks/deepspeed/stack.h"
#include "planner/stacks/pytorch/stack.h"

namespace plimsoll::planner::deepspeed {

namespace {

// Its modules are Transformers'.
models::Strategy compute_as(const models::Strategy& s) {
  models::Strategy whole = s;
  whole.data.shard_group = 0;
  models::Strategy out = module_strategy(whole, engine_of(whole));
  out.stack = models::Stack::pytorch;
  out.gpus_per_node = 1;
  return out;
}

// Without overlap_comm stages 1 and 2 wait for each bucket; stage 0 reduces when backward is done
// (engine.py, buffered_allreduce_fallback).
void add_exchange(const models::Strategy& s, int stage, const Execution& e, Exchange& x) {
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

// MiCS was removed from DeepSpeed 0.19: no --shard-group.
constinit const StackInfo kStack{
    .kind = models::Stack::deepspeed,
    .title = "DeepSpeed",
    .rungs = {"Plain DDP", "ZeRO-1", "ZeRO-2", "ZeRO-3"},
    .write_step = write_step,
    .compute_as = compute_as,
    .write_compute = pytorch::write_compute,
    .table_states = pytorch::table_states,
    .add_exchange = add_exchange,
    .processes = models::Stack::pytorch,
    .runs_transformers = true,
};

}  // namespace plimsoll::planner::deepspeed
