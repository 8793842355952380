// One optimizer step of a few units, without modules: gradients are drawn, so that any sharding can
// be compared with any other.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "runtime/comm/threads.h"
#include "runtime/shard/unit.h"

namespace plimsoll::runtime {

struct StepCase {
  models::Precision precision = models::Precision::fp32;
  int ranks = 1, stage = 0;
  std::int64_t shard_group = 0;  // 0: all ranks
  bool deterministic = true;
  std::int64_t accumulation = 1, steps = 1;
  models::Optimizer optimizer = models::Optimizer::adamw;
  bool lora = false;  // the last unit has adapters, the others are frozen
  Bytes bucket_cap = Bytes(200000);  // several messages for the largest tensor
  float max_norm = 0.5f;
  std::optional<DType> gradients, reduce;  // --grad-dtype, --reduce-dtype
  bool overflow = false;  // one element of rank 0's last gradient is infinite
};

// What a rank has at the end. Values unit by unit, parameter by parameter.
struct ShardedStep {
  std::vector<std::vector<float>> weights, masters, first_moments, second_moments, gradients;
  float norm = 0, factor = 0;
  std::int32_t overflow = 0;
  StepRecord record;  // of the last step
  bool same_values(const ShardedStep& other) const;
};

// Of every rank, as threads.
std::vector<ShardedStep> run_step(const StepCase& c);
// Of this rank of `world`.
ShardedStep run_rank_step(const StepCase& c, comm::Communicator& world);

// Between -1 and 1.
float drawn(std::uint64_t key);

// Of one unit, with nothing beside it: ops reduce and reduced; op step, which ends the ledger's
// step.
void reduce_alone(Worker& worker, shard::Unit& unit);
StepRecord step_alone(Worker& worker, shard::Unit& unit);

// One rank of a job of `c`: worker, communicators, block of scalars.
struct ShardedRank {
  ShardedRank(const StepCase& c, comm::Communicator& world);
  std::unique_ptr<shard::Unit> unit(const models::decisions::UnitNames& names, std::string prefix,
                                    std::vector<shard::UnitParameter> parameters);
  comm::Communicator& world;
  std::unique_ptr<comm::Communicator> shards, replicas;
  Worker worker;
  shard::Group group;
  Tensor scalar_block;
  std::int64_t next_element = 0;
};

}  // namespace plimsoll::runtime
