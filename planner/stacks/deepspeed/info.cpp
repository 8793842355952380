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
  out.param_dtype.reset();
  out.gpus_per_node = 1;
  return out;
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
    .write_optimizer = write_optimizer,
    .write_messages = write_messages,
    .table_states = pytorch::table_states,
    .processes = models::Stack::pytorch,
    .runs_transformers = true,
    .hooks_modules = true,
    .packs_bases = true,
    .offloads_optimizer = true,
};

}  // namespace plimsoll::planner::deepspeed
