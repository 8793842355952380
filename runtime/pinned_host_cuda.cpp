#include <cuda_runtime.h>

#include <algorithm>

#include "runtime/pinned_host.h"

namespace plimsoll::runtime {

namespace {

void expect(cudaError_t status, const char* what) {
  check(status == cudaSuccess, ErrorKind::device,
        [&] { return std::string(what) + ": " + cudaGetErrorString(status); });
}

// Locked as one range, since a copy may not cross from one range to another: locked anew where it
// grows, by an eighth at least, so that all of this takes nine times the last at most.
class PinnedRegion final : public Region {
 public:
  explicit PinnedRegion(Bytes most) : pages_(host_device().reserve(most)), most_(most.value()) {}
  ~PinnedRegion() override {
    if (locked_ > 0) cudaHostUnregister(pages_->base());
  }
  PinnedRegion(const PinnedRegion&) = delete;
  PinnedRegion& operator=(const PinnedRegion&) = delete;

  std::byte* base() const override { return pages_->base(); }
  void grow(Bytes bytes) override {
    pages_->grow(bytes);
    if (bytes.value() <= locked_) return;
    const std::int64_t more = std::max(bytes.value(), locked_ + locked_ / 8);
    const std::int64_t next = std::min(round_up(Bytes(more), kGranule).value(), most_);
    // Inputs of layers may be on their way (Device::start_copy_out).
    if (locked_ > 0) expect(cudaDeviceSynchronize(), "page-locked memory");
    if (locked_ > 0) expect(cudaHostUnregister(pages_->base()), "page-locked memory");
    locked_ = 0;
    const cudaError_t status =
        cudaHostRegister(pages_->base(), static_cast<std::size_t>(next), cudaHostRegisterPortable);
    if (status == cudaErrorMemoryAllocation) cudaGetLastError();  // not the next call's error
    check(status != cudaErrorMemoryAllocation, ErrorKind::out_of_memory, [&] {
      return "the host does not lock " + std::to_string(next) +
             " B of memory (ulimit -l, or --offload-pin no)";
    });
    expect(status, "page-locked memory");
    locked_ = next;
  }

 private:
  static constexpr std::int64_t kGranule = 2 << 20;
  std::unique_ptr<Region> pages_;
  std::int64_t most_, locked_ = 0;
};

class PinnedHost final : public Device {
 public:
  models::Device kind() const override { return models::Device::cpu; }
  std::string name() const override { return host_device().name(); }
  const kernels::KernelTable& kernels() const override { return host_device().kernels(); }
  std::unique_ptr<Region> reserve(Bytes most) override {
    return std::make_unique<PinnedRegion>(most);
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
  void synchronize() override {}
  std::unique_ptr<Stopwatch> stopwatch() override { return host_device().stopwatch(); }
};

}  // namespace

Device& pinned_host() {
  static PinnedHost host;
  return host;
}

}  // namespace plimsoll::runtime
