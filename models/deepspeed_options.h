// DeepSpeed's own knobs that bear on memory, under DeepSpeed's names and with its defaults
// (deepspeed 0.19.8, runtime/zero/config.py). Sizes are elements, not bytes.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>

namespace plimsoll::models {

// Of what is offloaded to files (runtime/zero/offload_config.py).
struct NvmeOptions {
  std::int64_t optimizer_buffer_count = 4;  // offload_optimizer.buffer_count
  std::int64_t param_buffer_count = 5;  // offload_param's
  std::int64_t param_buffer_size = 100'000'000;
  std::int64_t max_in_cpu = 1'000'000'000;  // of parameters
  bool operator==(const NvmeOptions&) const = default;
};

struct DeepSpeedOptions {
  std::int64_t reduce_bucket_size = 500'000'000;
  std::int64_t allgather_bucket_size = 500'000'000;
  std::optional<bool> overlap_comm;  // absent: stage 3 only
  bool contiguous_gradients = true;
  bool reduce_scatter = true;
  bool round_robin_gradients = false;  // stages 1 and 2
  std::int64_t sub_group_size = 1'000'000'000;
  std::int64_t prefetch_bucket_size = 50'000'000;
  std::int64_t param_persistence_threshold = 100'000;
  std::int64_t model_persistence_threshold = std::numeric_limits<std::int64_t>::max();
  std::int64_t max_live_parameters = 1'000'000'000;
  std::int64_t max_reuse_distance = 1'000'000'000;
  bool check_grad_overflow = true;  // bf16 section; fp16 always checks
  NvmeOptions nvme;
  bool operator==(const DeepSpeedOptions&) const = default;
};

}  // namespace plimsoll::models
