// What the ranks of a strategy exchange in a step, when, and how long the messages take.
#pragma once

#include "models/run_spec.h"
#include "planner/time/collective_cost.h"
#include "planner/time/compute_cost.h"

namespace plimsoll::planner {

// The decisions of a stack. Sources: torch/nn/parallel/distributed.py and
// distributed/optim/zero_redundancy_optimizer.py, distributed/fsdp/_fully_shard;
// models/decisions/sharding.h; deepspeed/runtime/engine.py and zero/stage_1_and_2.py, stage3.py.
struct Exchange {
  enum class Reduction : std::uint8_t { all_reduce, scatter };
  enum class Update : std::uint8_t { none, gather, broadcast };

  Group shards, replicas;  // ranks that share one copy, and the copies
  Reduction reduction = Reduction::all_reduce;  // of gradients; the replicas' always all-reduce
  Update update = Update::none;  // of parameters, after the optimizer's step
  bool gathers = false;  // parameters before use
  bool regathers = false;  // and again for backward
  bool reduces_each = false;  // gradients at every micro-batch, not only the last
  bool overlaps = true;  // reductions run beside backward
  bool steps_shard = false;  // the optimizer steps this rank's part
  bool copies = false;  // into and out of messages
  double bucket = 0;  // bytes of one reduction; 0: a unit is one message
};
Exchange exchange_of(const models::Strategy& strategy, const Execution& execution);

// Messages of the parameters or gradients of one unit, in elements of it.
class Messages {
 public:
  Messages(const Fabric& fabric, const Exchange& exchange, const Execution& execution,
           double memory)
      : fabric_(fabric), x_(exchange), e_(execution), memory_(memory) {}

  double gather(double elements) const;
  double reduce(double elements) const;
  double update(double elements) const;  // of all trained parameters
  // Copies on the GPU beside a gather and a reduction.
  Cost copy_out(double elements) const;
  Cost copy_in(double elements) const;

 private:
  const Fabric& fabric_;
  const Exchange& x_;
  const Execution& e_;
  double memory_;  // bytes/s
};

}  // namespace plimsoll::planner
