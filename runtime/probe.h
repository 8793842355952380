// What the driver says of a GPU, who knows nothing of our ledger: the outside witness.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "models/base/quantity.h"

namespace plimsoll::runtime {

struct GpuFacts {
  std::string name, driver, cuda_driver, cuda_runtime;  // "580.95", "13.0", "13.0"
  int capability = 0;  // 90
  int multiprocessors = 0;
};

// At one moment. `free` and `total` by cudaMemGetInfo, of all processes; what is optional is NVML's
// (the driver's libnvidia-ml.so.1, looked up when it is asked for).
struct GpuReading {
  Bytes free, total;
  std::optional<Bytes> process;  // of this process alone; containers hide it
  std::optional<double> sm_clock_hertz, memory_clock_hertz, power_watts, power_limit_watts;
  std::optional<double> temperature_celsius;
  std::optional<std::uint64_t> throttle_reasons;  // nvmlClocksEventReasons*, a bit each
  std::optional<int> other_processes;
};

// Of `cuda_device(index)`. Error{device}.
GpuFacts gpu_facts(int index);
GpuReading read_gpu(int index);
int this_gpu();  // of the calling thread

}  // namespace plimsoll::runtime
