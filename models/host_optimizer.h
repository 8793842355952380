// An optimizer on the host without FSDP or an engine: torchao's, around one of torch.optim's
// (--offload optimizer).
//
// torchao 0.18, optim/cpu_offload.py, CPUOffloadOptimizer: of each trained parameter of at least
// minimal_size elements it keeps a copy in pinned memory, and a pinned gradient; torch.optim's
// states are made of that copy, pageable. A hook behind the gradient's accumulation copies it down
// on a stream of its own, on which nothing is allocated; the gradient stays on the device until
// zero_grad, unless offload_gradients is set (--offload optimizer,gradients): then it goes at once.
// The step copies each weight back. What is smaller stays with an optimizer on the device. Both
// step AdamW fused.
#pragma once

#include "models/run_spec.h"

namespace plimsoll::models {

inline constexpr std::int64_t kLeastOnHost = 4096;  // minimal_size

// FSDP, and another stack around this one, offload in their own ways.
inline bool has_host_optimizer(const Strategy& s) {
  return s.stack == Stack::pytorch && s.offload.optimizer && !s.offload.params;
}
inline bool steps_on_host(const Strategy& s, std::int64_t elements) {
  return has_host_optimizer(s) && elements >= kLeastOnHost;
}

}  // namespace plimsoll::models
