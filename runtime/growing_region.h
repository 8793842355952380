// A device's range of addresses into which memory is mapped as it is needed, so that an arena grows
// and nothing in it moves.
#pragma once

#include <memory>

#include "runtime/device.h"

namespace plimsoll::runtime {

// What a driver offers. All sizes and offsets are multiples of `granularity`.
class VirtualMemory {
 public:
  virtual ~VirtualMemory() = default;
  virtual std::int64_t granularity() const = 0;
  virtual std::int64_t capacity() const = 0;  // of the device, in bytes
  virtual std::byte* reserve(std::int64_t bytes) = 0;  // Error{device}
  // False: the device has no more memory.
  virtual bool map(std::byte* at, std::int64_t bytes) = 0;
  virtual std::int64_t free_bytes() const = 0;  // for messages
  // Waits until nobody uses what is mapped, and gives all of it back. Throws nothing.
  virtual void release(std::byte* base, std::int64_t reserved) noexcept = 0;
};

// Reserves addresses for `most`, but no more than the device has memory.
std::unique_ptr<Region> growing_region(std::unique_ptr<VirtualMemory> memory, Bytes most);

// The driver's, for the calling thread's GPU; null where the GPU has none. In
// virtual_memory_cuda.cpp.
std::unique_ptr<VirtualMemory> cuda_virtual_memory(int device);

}  // namespace plimsoll::runtime
