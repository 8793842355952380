#include "runtime/comm/nccl_ranks.h"

#include <cstdlib>

namespace plimsoll::runtime::comm {

namespace {

// On the GPU of this rank: its thread's state is made here, before NCCL asks for the device.
void run_on_gpu(std::unique_ptr<Control> control, std::optional<int> local_rank,
                const CudaOptions& cuda, const NcclOptions& options,
                const std::function<void(Communicator&, Device&)>& function) {
  if (!local_rank) local_rank = local_rank_of(control->gather(host_name()), control->rank());
  Device& device = cuda_device(*local_rank, cuda);
  device.kernels();
  const auto world = nccl_communicator(std::move(control), options);
  function(*world, device);
  device.synchronize();
  world->barrier();  // else who ends first looks like one that has died
}

}  // namespace

void run_nccl_rank(const Launch& launch, const CudaOptions& cuda, const NcclOptions& options,
                   const std::function<void(Communicator&, Device&)>& function) {
  Control* control = nullptr;
  const Error spare = no_host_memory(launch.rank);
  const auto attempt = [](auto act) {  // what finds no memory for its words
    try {
      act();
    } catch (const std::exception&) {
    }
  };
  const auto end = [&](const Error& named) {
    attempt([&] { options.ending.say(named); });
    if (control != nullptr) attempt([&] { control->abort(news_of(named)); });
    if (launch.rank == 0) attempt([&] { options.ending.write(named); });
    std::_Exit(status_of(named));
  };
  // Inside the function, because what unwinds may wait for other ranks.
  const auto guarded = [&](Communicator& world, Device& device) {
    try {
      function(world, device);
    } catch (const std::exception&) {
      end_with_current_error(launch.rank, spare, end);
    }
  };
  try {
    auto owned = tcp_control(launch, options.timeout_seconds);
    control = owned.get();
    run_on_gpu(std::move(owned), launch.local_rank, cuda, options, guarded);
  } catch (const std::exception&) {
    control = nullptr;  // it may have gone
    end_with_current_error(launch.rank, spare, end);
  }
}

void run_nccl_rank_over(Communicator& hosts, std::optional<int> local_rank, const CudaOptions& cuda,
                        const NcclOptions& options,
                        const std::function<void(Communicator&, Device&)>& function) {
  run_on_gpu(control_over(hosts), local_rank, cuda, options, function);
}

}  // namespace plimsoll::runtime::comm
