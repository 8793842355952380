// Ranks as processes with a GPU each, whose tensors go over NCCL. Chosen in the build:
// nccl_communicator.cpp, or no_nccl.cpp where there is no NCCL or CUDA. Compiled, linked and its
// host side tested; run neither with one rank nor across GPUs yet.
#pragma once

#include <functional>
#include <memory>

#include "runtime/comm/control.h"
#include "runtime/comm/ending.h"
#include "runtime/device_cuda.h"

namespace plimsoll::runtime::comm {

struct NcclOptions {
  double timeout_seconds = 600;  // of any operation, from when it was started
  // Sums in the canonical tree of communicator.h: ranks exchange their values and add them in the
  // staging block. Else NCCL's sums.
  bool deterministic = true;
  Ending ending;  // before an error of this rank, or one that it sees, ends the process
  // Runs one rank's NCCL as well: for tests. Without it a job of one rank has no communicator.
  bool also_alone = false;
};

// For the calling thread, which works on a `cuda_device`. All ranks of `control` at once. A second
// thread looks for NCCL's errors, for operations that hang, and for ranks that have ended; then
// the process ends. Error{communicator}; Error{unsupported}: a build without NCCL.
std::unique_ptr<Communicator> nccl_communicator(std::unique_ptr<Control> control,
                                                const NcclOptions& options);

// Meets the ranks that torchrun or plain Slurm started, and runs `function` with this process's
// rank and its GPU. An error does not come back: the process ends with it, and the job.
void run_nccl_rank(const Launch& launch, const CudaOptions& cuda, const NcclOptions& options,
                   const std::function<void(Communicator&, Device&)>& function);

// The same for a rank of MPI's (mpi_ranks.h), whose communicator `hosts` is. Errors come back.
void run_nccl_rank_over(Communicator& hosts, std::optional<int> local_rank, const CudaOptions& cuda,
                        const NcclOptions& options,
                        const std::function<void(Communicator&, Device&)>& function);

// NCCL's version, "2.28.9"; "" in a build without it.
std::string nccl_version();

}  // namespace plimsoll::runtime::comm
