// All ranks of a job, or this process's of them, wherever they were started.
#pragma once

#include <functional>

#include "runtime/comm/nccl_ranks.h"

namespace plimsoll::runtime::comm {

struct JobOptions {
  models::Device device = models::Device::cpu;
  int ranks = 1;  // as threads, where nobody has started several processes
  int gpu = 0;  // that all threads share
  CudaOptions cuda;
  bool deterministic = true;  // how processes with GPUs add (threads always add canonically)
  double timeout_seconds = 600;
  Ending ending;  // of several processes, when one has failed
};

// In the order of `detect_launch`: MPI's processes (host memory, or a GPU each over NCCL), those of
// torchrun or plain Slurm (a GPU each), else threads of this process, all on the host or on one
// GPU. `function` runs once for each rank that is here, on its own thread. Whoever starts several
// processes decides how many ranks there are: ask `world.size()`.
void run_job(const JobOptions& options,
             const std::function<void(Communicator&, Device&)>& function);

}  // namespace plimsoll::runtime::comm
