#include "runtime/comm/job.h"

#include "runtime/comm/mpi_ranks.h"
#include "runtime/comm/threads.h"

namespace plimsoll::runtime::comm {

namespace {

using Function = std::function<void(Communicator&, Device&)>;

void run_mpi(const Launch& launch, const JobOptions& options, const NcclOptions& nccl,
             const Function& function) {
  const bool on_gpus = options.device == models::Device::cuda;
  run_mpi_rank(
      [&](Communicator& hosts) {
        if (on_gpus)
          run_nccl_rank_over(hosts, launch.local_rank, options.cuda, nccl, function);
        else
          function(hosts, host_device());
      },
      {options.timeout_seconds, options.ending});
}

void run_threads(const JobOptions& options, const Function& function) {
  const bool on_gpu = options.device == models::Device::cuda;
  CudaOptions cuda = options.cuda;
  cuda.ranks = options.ranks;
  Device& device = on_gpu ? cuda_device(options.gpu, cuda) : host_device();
  run_ranks(options.ranks, [&](Communicator& world) { function(world, device); },
            {options.timeout_seconds, on_gpu ? &cuda_buffers() : &host_buffers()});
}

}  // namespace

void run_job(const JobOptions& options, const Function& function) {
  const Launch launch = detect_launch();
  const bool on_gpus = options.device == models::Device::cuda;
  const NcclOptions nccl{.timeout_seconds = options.timeout_seconds,
                         .deterministic = options.deterministic,
                         .ending = options.ending};
  expect_gpus(launch, on_gpus);
  if (launch.launcher == Launcher::mpi) return run_mpi(launch, options, nccl, function);
  if (is_distributed(launch)) return run_nccl_rank(launch, options.cuda, nccl, function);
  run_threads(options, function);
}

}  // namespace plimsoll::runtime::comm
