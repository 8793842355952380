// The host as a device whose copies beside the ops arrive as late as they may: what was not waited
// for is seen.
#pragma once

#include <atomic>
#include <memory>

#include "runtime/device.h"

namespace plimsoll::witness {

class LateCopies final : public runtime::Device {
 public:
  models::Device kind() const override { return host_.kind(); }
  std::string name() const override { return host_.name(); }
  const kernels::KernelTable& kernels() const override { return host_.kernels(); }
  std::unique_ptr<runtime::Region> reserve(Bytes most) override { return host_.reserve(most); }
  void copy(void* to, const void* from, Bytes bytes) override { host_.copy(to, from, bytes); }
  void copy_in(void* to, const void* from, Bytes bytes) override { host_.copy(to, from, bytes); }
  void copy_out(void* to, const void* from, Bytes bytes) override { host_.copy(to, from, bytes); }
  std::unique_ptr<runtime::Copying> start_copy_in(void* to, const void* from,
                                                  Bytes bytes) override {
    return std::make_unique<Late>(*this, to, from, bytes);
  }
  std::unique_ptr<runtime::Copying> start_copy_out(void* to, const void* from,
                                                   Bytes bytes) override {
    return std::make_unique<Late>(*this, to, from, bytes);
  }
  void fill_bytes(void* to, unsigned char value, Bytes bytes) override {
    host_.fill_bytes(to, value, bytes);
  }
  void synchronize() override {}
  std::unique_ptr<runtime::Stopwatch> stopwatch() override { return host_.stopwatch(); }

  std::int64_t copies() const { return copies_; }

 private:
  class Late final : public runtime::Copying {
   public:
    Late(LateCopies& device, void* to, const void* from, Bytes bytes)
        : device_(device), to_(to), from_(from), bytes_(bytes) {
      device_.fill_bytes(to, 0xff, bytes);  // NaN
    }
    void wait() override {
      device_.copy(to_, from_, bytes_);
      ++device_.copies_;
    }

   private:
    LateCopies& device_;
    void* to_;
    const void* from_;
    Bytes bytes_;
  };

  runtime::Device& host_ = runtime::host_device();
  std::atomic<std::int64_t> copies_ = 0;
};

}  // namespace plimsoll::witness
