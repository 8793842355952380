#include <sys/mman.h>

#include <cerrno>
#include <chrono>
#include <cstring>

#include "runtime/device.h"

namespace plimsoll::runtime {

namespace {

// Pages are taken from the system when they are first touched.
class HostRegion final : public Region {
 public:
  explicit HostRegion(Bytes most) : bytes_(static_cast<std::size_t>(most.value())) {
    void* base = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    check(base != MAP_FAILED, ErrorKind::out_of_memory, [&] {
      return "the host cannot reserve " + std::to_string(bytes_) +
             " bytes of addresses: " + std::strerror(errno);
    });
    base_ = static_cast<std::byte*>(base);
  }
  ~HostRegion() override { munmap(base_, bytes_); }
  HostRegion(const HostRegion&) = delete;
  HostRegion& operator=(const HostRegion&) = delete;
  std::byte* base() const override { return base_; }
  void grow(Bytes bytes) override {
    check(static_cast<std::size_t>(bytes.value()) <= bytes_, ErrorKind::out_of_memory,
          "the host's address range is used up");
  }

 private:
  std::byte* base_ = nullptr;
  std::size_t bytes_ = 0;
};

std::size_t size(Bytes bytes) {
  return static_cast<std::size_t>(bytes.value());
}

class HostStopwatch final : public Stopwatch {
 public:
  void mark() override { marks_.push_back(Clock::now()); }
  std::vector<double> laps() override {
    std::vector<double> seconds;
    for (std::size_t i = 1; i < marks_.size(); ++i)
      seconds.push_back(std::chrono::duration<double>(marks_[i] - marks_[i - 1]).count());
    return seconds;
  }

 private:
  using Clock = std::chrono::steady_clock;
  std::vector<Clock::time_point> marks_;
};

class Copied final : public Copying {
 public:
  void wait() override {}
};

class HostDevice final : public Device {
 public:
  models::Device kind() const override { return models::Device::cpu; }
  std::string name() const override { return "cpu"; }
  const kernels::KernelTable& kernels() const override { return kernels::host_kernels(); }
  std::unique_ptr<Region> reserve(Bytes most) override {
    return std::make_unique<HostRegion>(most);
  }
  void copy(void* to, const void* from, Bytes bytes) override {
    std::memmove(to, from, size(bytes));
  }
  void copy_in(void* to, const void* host, Bytes bytes) override {
    std::memcpy(to, host, size(bytes));
  }
  void copy_out(void* host, const void* from, Bytes bytes) override {
    std::memcpy(host, from, size(bytes));
  }
  void fill_bytes(void* to, unsigned char value, Bytes bytes) override {
    std::memset(to, value, size(bytes));
  }
  void synchronize() override {}
  std::unique_ptr<Stopwatch> stopwatch() override { return std::make_unique<HostStopwatch>(); }
};

}  // namespace

Device& Device::host(bool) {
  return host_device();
}

std::unique_ptr<Copying> Device::start_copy_in(void* to, const void* host, Bytes bytes) {
  copy_in(to, host, bytes);
  return std::make_unique<Copied>();
}

std::unique_ptr<Copying> Device::start_copy_out(void* host, const void* from, Bytes bytes) {
  copy_out(host, from, bytes);
  return std::make_unique<Copied>();
}

Device& host_device() {
  static HostDevice device;
  return device;
}

}  // namespace plimsoll::runtime
