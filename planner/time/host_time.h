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

// Checkpoint, adapters and hooks of the run's layer of this place in its pattern: launches alone.
PartCost host_cost(const LayerRun& run, std::size_t place, const models::Strategy& strategy);

}  // namespace plimsoll::planner
