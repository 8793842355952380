#include "runtime/probe.h"

#include <cuda_runtime.h>
#include <dlfcn.h>
#include <unistd.h>

#include <array>

#include "models/base/error.h"
#include "runtime/device_cuda.h"

namespace plimsoll::runtime {

namespace {

void expect(cudaError_t status, const char* what) {
  check(status == cudaSuccess, ErrorKind::device,
        [&] { return std::string(what) + ": " + cudaGetErrorString(status); });
}

std::string version_text(int version) {
  return std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10);
}

// NVML's functions and structures as its reference manual has them: its header is not part of every
// toolkit.
using NvmlDevice = void*;
struct NvmlProcess {
  unsigned pid;
  unsigned long long used_bytes;
  unsigned gpu_instance, compute_instance;
};
constexpr unsigned long long kNotAvailable = ~0ull;
constexpr unsigned kSmClock = 1, kMemoryClock = 2, kTemperature = 0;

struct Nvml {
  int (*init)() = nullptr;
  int (*by_bus)(const char*, NvmlDevice*) = nullptr;
  int (*driver_version)(char*, unsigned) = nullptr;
  int (*clock)(NvmlDevice, unsigned, unsigned*) = nullptr;
  int (*power)(NvmlDevice, unsigned*) = nullptr;
  int (*power_limit)(NvmlDevice, unsigned*) = nullptr;
  int (*temperature)(NvmlDevice, unsigned, unsigned*) = nullptr;
  int (*throttled)(NvmlDevice, unsigned long long*) = nullptr;
  int (*processes)(NvmlDevice, unsigned*, NvmlProcess*) = nullptr;
  bool there = false;
};

const Nvml& nvml() {
  static const Nvml found = [] {
    Nvml n;
    void* library = dlopen("libnvidia-ml.so.1", RTLD_NOW);
    if (library == nullptr) return n;
    // What a driver lacks (older ones some, newer ones what was withdrawn) is not read.
    const auto find = [&](auto& entry, const char* name) {
      entry = reinterpret_cast<std::remove_reference_t<decltype(entry)>>(dlsym(library, name));
    };
    find(n.init, "nvmlInit_v2");
    find(n.by_bus, "nvmlDeviceGetHandleByPciBusId_v2");
    find(n.driver_version, "nvmlSystemGetDriverVersion");
    find(n.clock, "nvmlDeviceGetClockInfo");
    find(n.power, "nvmlDeviceGetPowerUsage");
    find(n.power_limit, "nvmlDeviceGetEnforcedPowerLimit");
    find(n.temperature, "nvmlDeviceGetTemperature");
    find(n.throttled, "nvmlDeviceGetCurrentClocksThrottleReasons");
    find(n.processes, "nvmlDeviceGetComputeRunningProcesses_v3");
    n.there = n.init != nullptr && n.by_bus != nullptr && n.init() == 0;
    return n;
  }();
  return found;
}

// By its address on the bus: NVML does not know CUDA_VISIBLE_DEVICES.
NvmlDevice nvml_device(int index) {
  std::array<char, 32> bus{};
  NvmlDevice device = nullptr;
  if (!nvml().there || cudaDeviceGetPCIBusId(bus.data(), bus.size(), index) != cudaSuccess ||
      nvml().by_bus(bus.data(), &device) != 0)
    return nullptr;
  return device;
}

template <class Function, class... Before>
std::optional<double> asked(double unit, Function function, Before... before) {
  unsigned value = 0;
  if (function == nullptr || function(before..., &value) != 0) return std::nullopt;
  return value * unit;
}

void read_processes(NvmlDevice device, GpuReading& reading) {
  std::array<NvmlProcess, 64> processes{};
  unsigned count = processes.size();
  if (nvml().processes == nullptr || nvml().processes(device, &count, processes.data()) != 0)
    return;
  int others = 0;
  const auto own = static_cast<unsigned>(getpid());
  for (unsigned i = 0; i < count; ++i) {
    if (processes[i].pid != own)
      ++others;
    else if (processes[i].used_bytes != kNotAvailable)
      reading.process = Bytes(static_cast<std::int64_t>(processes[i].used_bytes));
  }
  reading.other_processes = others;
}

}  // namespace

GpuFacts gpu_facts(int index) {
  const std::string why = why_no_cuda(index);
  check(why.empty(), ErrorKind::device, why);
  cudaDeviceProp properties{};
  expect(cudaGetDeviceProperties(&properties, index), "the GPU");
  int driver = 0;
  expect(cudaDriverGetVersion(&driver), "the driver");
  GpuFacts facts;
  facts.name = properties.name;
  facts.cuda_driver = version_text(driver);
  facts.cuda_runtime = version_text(CUDART_VERSION);
  facts.capability = 10 * properties.major + properties.minor;
  facts.multiprocessors = properties.multiProcessorCount;
  std::array<char, 96> version{};
  if (nvml().there && nvml().driver_version != nullptr &&
      nvml().driver_version(version.data(), version.size()) == 0)
    facts.driver = version.data();
  return facts;
}

int this_gpu() {
  int index = 0;
  expect(cudaGetDevice(&index), "the GPU");
  return index;
}

GpuReading read_gpu(int index) {
  int before = 0;
  expect(cudaGetDevice(&before), "the GPU");
  expect(cudaSetDevice(index), "the GPU");
  std::size_t free = 0, total = 0;
  const cudaError_t status = cudaMemGetInfo(&free, &total);
  cudaSetDevice(before);
  expect(status, "the GPU's memory");
  GpuReading reading;
  reading.free = Bytes(static_cast<std::int64_t>(free));
  reading.total = Bytes(static_cast<std::int64_t>(total));
  NvmlDevice device = nvml_device(index);
  if (device == nullptr) return reading;
  reading.sm_clock_hertz = asked(1e6, nvml().clock, device, kSmClock);
  reading.memory_clock_hertz = asked(1e6, nvml().clock, device, kMemoryClock);
  reading.power_watts = asked(1e-3, nvml().power, device);
  reading.power_limit_watts = asked(1e-3, nvml().power_limit, device);
  reading.temperature_celsius = asked(1, nvml().temperature, device, kTemperature);
  unsigned long long reasons = 0;
  if (nvml().throttled != nullptr && nvml().throttled(device, &reasons) == 0)
    reading.throttle_reasons = reasons;
  read_processes(device, reading);
  return reading;
}

}  // namespace plimsoll::runtime
