// The keys of `fsdp_config`: Accelerate's (fsdp_sharding_strategy, …), and TrainingArguments' own,
// which are the same without "fsdp_".
#pragma once

#include <cstdint>

#include "models/config_reader.h"
#include "models/file_settings.h"

namespace plimsoll::models {

// Whose defaults fill in what is missing.
struct FsdpDefaults {
  int version = 1;  // accelerate 1.15, commands/launch.py; TrainingArguments 5.17: 2
  bool trainer = false;  // TrainingArguments wraps by layer, the launcher not at all
};

// Adds --zero, --fsdp-version, --shard-group and --recompute. `gpus_per_node`: what the hybrid
// strategies shard over (0: not known). Error{unsupported}: what is not planned (offloading, other
// wrapping than by layer, prefetching other than planned). Error{bad_input}: unknown keys, wrong
// types.
void add_fsdp_settings(const Config& fsdp, const FsdpDefaults& defaults, std::int64_t gpus_per_node,
                       FileSettings& out);

// dp_replicate_size and dp_shard_size, with "parallelism_config_" before them or not; more than 1
// of the others becomes --tp, --cp.
void add_parallelism_settings(const Config& sizes, FileSettings& out);

}  // namespace plimsoll::models
