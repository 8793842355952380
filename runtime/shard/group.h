// Which part of its units a rank stores, and with whom it exchanges the rest.
#pragma once

#include "models/decisions/sharding.h"
#include "models/run_spec.h"
#include "runtime/comm/communicator.h"

namespace plimsoll::runtime::shard {

// The same for all units of a rank.
struct Group {
  models::decisions::Sharding sharding;
  models::decisions::ReduceMoment moment = models::decisions::ReduceMoment::last_micro_batch;
  Bytes bucket_cap = models::DataParallel().bucket_cap;
  comm::Communicator* shards = nullptr;  // ranks that share one copy
  comm::Communicator* replicas = nullptr;  // ranks that hold the same piece
  models::Optimizer optimizer = models::Optimizer::adamw;
  bool offloads_states = false;  // to Worker::host_memory
};

}  // namespace plimsoll::runtime::shard
