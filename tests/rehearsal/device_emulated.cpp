// In the place of runtime/*_cuda.cpp: a GPU whose kernels run in tests/kernels/emulator and whose
// memory is the host's. No library multiplies or attends. It shows what the runtime does on a GPU,
// with the sizes and workspaces of one, on any machine.
#include <algorithm>
#include <atomic>
#include <mutex>
#include <optional>

#include "kernels/cuda/launch.h"
#include "kernels/cuda/rank_sum.h"
#include "runtime/comm/shared_buffers.h"
#include "runtime/device_cuda.h"
#include "runtime/probe.h"

namespace plimsoll::runtime {

namespace {

namespace cuda = kernels::cuda;

// As the catalog has an H200 (models/specs/gpus.json).
constexpr std::int64_t kTotal = 150109880320;
std::atomic<std::int64_t> taken{512 << 20};  // a context

// Memory counts as taken when it is grown into.
class EmulatedRegion final : public Region {
 public:
  explicit EmulatedRegion(Bytes most)
      : most_(std::min(most.value(), kTotal)), memory_(host_device().reserve(Bytes(most_))) {}
  ~EmulatedRegion() override { taken -= grown_; }
  EmulatedRegion(const EmulatedRegion&) = delete;
  EmulatedRegion& operator=(const EmulatedRegion&) = delete;
  std::byte* base() const override { return memory_->base(); }
  void grow(Bytes bytes) override {
    const std::int64_t whole = round_up(bytes, 2 << 20).value();
    if (whole <= grown_) return;
    check(whole <= most_ && taken + whole - grown_ <= kTotal, ErrorKind::out_of_memory,
          "the emulated GPU has no more memory");
    taken += whole - grown_;
    grown_ = whole;
  }

 private:
  std::int64_t most_, grown_ = 0;
  std::unique_ptr<Region> memory_;
};

// Of a rank's thread.
struct ThreadState {
  std::int32_t faults[2] = {0, 0};
  cuda::Launching launching;

  explicit ThreadState(cuda::Mode mode)
      : launching({.mode = mode, .faults = {faults, DType::int32, {2}}}) {}
};
thread_local std::optional<ThreadState> this_thread;

class EmulatedDevice final : public Device {
 public:
  void use(const CudaOptions& options) {
    const std::lock_guard lock(mutex_);
    options_ = options;
  }
  models::Device kind() const override { return models::Device::cuda; }
  std::string name() const override { return "NVIDIA H200"; }
  const kernels::KernelTable& kernels() const override {
    const std::lock_guard lock(mutex_);
    if (!this_thread) this_thread.emplace(options_.mode);
    return kernels::cuda_kernels();
  }
  std::unique_ptr<Region> reserve(Bytes most) override {
    return std::make_unique<EmulatedRegion>(most);
  }
  void copy(void* to, const void* from, Bytes bytes) override {
    host_device().copy(to, from, bytes);
  }
  void copy_in(void* to, const void* host, Bytes bytes) override {
    host_device().copy_in(to, host, bytes);
  }
  void copy_out(void* host, const void* from, Bytes bytes) override {
    host_device().copy_out(host, from, bytes);
  }
  void fill_bytes(void* to, unsigned char value, Bytes bytes) override {
    host_device().fill_bytes(to, value, bytes);
  }
  void synchronize() override {
    if (!this_thread || this_thread->faults[0] == 0) return;
    const auto fault = static_cast<cuda::Fault>(this_thread->faults[0]);
    this_thread->faults[0] = 0;
    cuda::throw_fault(fault, this_thread->faults[1]);
  }
  std::unique_ptr<Stopwatch> stopwatch() override { return host_device().stopwatch(); }

 private:
  mutable std::mutex mutex_;
  CudaOptions options_;
};

// Nothing is queued: what a rank has asked for is done.
class EmulatedBuffers final : public comm::SharedBuffers {
 public:
  Place place() override { return nullptr; }
  void after(const Place&) override {}
  void sum(std::span<const void* const> ranks, std::span<void* const> to, DType dtype,
           std::int64_t count) override {
    cuda::rank_sum(ranks, to, dtype, count);
  }
  void copy(void* to, const void* from, Bytes bytes) override {
    host_device().copy(to, from, bytes);
  }
};

}  // namespace

std::string why_no_cuda(int index) {
  return index == 0 ? "" : "the emulated GPU is number 0";
}

Device& cuda_device(int index, const CudaOptions& options) {
  static EmulatedDevice device;
  check(index == 0, ErrorKind::device, why_no_cuda(index));
  device.use(options);
  return device;
}

GpuFacts gpu_facts(int) {
  return {.name = "NVIDIA H200",
          .driver = "emulated",
          .cuda_driver = "0.0",
          .cuda_runtime = "0.0",
          .capability = 90,
          .multiprocessors = 132};
}
int this_gpu() {
  return 0;
}
GpuReading read_gpu(int) {
  GpuReading reading;
  reading.total = Bytes(kTotal);
  reading.free = Bytes(kTotal - taken);
  return reading;
}

comm::SharedBuffers& comm::cuda_buffers() {
  static EmulatedBuffers buffers;
  return buffers;
}

}  // namespace plimsoll::runtime
