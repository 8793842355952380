// How long the host takes to issue what the GPU runs: kernels, and the Python around them.
//
// From steps of the real packages on a CUDA runtime that computes nothing (tools/oracle/
// host_times.py; tests/golden/host_times.json, which tests/planner/host_time_test.cpp holds these
// against). The driver's own share of a launch, and NCCL's of a message, are not in it; and
// processors differ: the figures are of one that issues a small kernel, torch.add, in 2 us.
#pragma once

#include "models/run_spec.h"
#include "planner/model_parts.h"
#include "planner/time/compute_time.h"

namespace plimsoll::planner {

// Of one kernel, seconds.
Share launch_seconds(const models::Strategy& strategy);
// Of one message: what FSDP's hooks do around it.
Share message_seconds(const models::Strategy& strategy);
// Of the hooks around a module that has parameters, in each pass over it: ZeRO-3's of DeepSpeed,
// which ask for these whether or not they are sent.
Share hook_seconds(const models::Strategy& strategy);
// Of the checkpoint that a layer is, forward and backward together: hooks on what it saves, or the
// state of the random numbers.
Share checkpoint_seconds(const models::Strategy& strategy);
// Of the module that PEFT puts around a linear, each time that it runs forward and backward.
Share adapter_seconds(const models::Strategy& strategy);

// What the host does around a layer.
struct LayerHost {
  PartCost python;  // checkpoint, adapters and hooks: launches alone
  // Of the layer's work on the GPU, what stands between its units where these are gathered one by
  // one: alone that runs beside what the host needs for them. FSDP1's host waits until the GPU is
  // no more than kUnitsAhead behind it, so that it cannot use the rest (torch/distributed/fsdp/
  // _limiter_utils.py, _FreeEventQueue). By the weights of the linears that are adapted.
  double between_units = 1;
};
constexpr double kUnitsAhead = 2;
// Of the run's layer of this place in its pattern.
LayerHost layer_host(const LayerRun& run, std::size_t place, const models::Strategy& strategy);

}  // namespace plimsoll::planner
