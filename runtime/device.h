// Where tensors are and kernels run: the host, or a GPU. One object serves all ranks that share it.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "kernels/kernel_table.h"
#include "kernels/library_choice.h"
#include "models/base/quantity.h"
#include "models/run_spec.h"

namespace plimsoll::runtime {

// A range of addresses of a device that never moves; memory stands behind its beginning.
class Region {
 public:
  virtual ~Region() = default;
  virtual std::byte* base() const = 0;
  // Memory stands behind the first `bytes`, at least. Error{out_of_memory}: the device has no more.
  virtual void grow(Bytes bytes) = 0;
};

// Times on the device, in the order of the calling rank's ops.
class Stopwatch {
 public:
  virtual ~Stopwatch() = default;
  virtual void mark() = 0;
  // Seconds from each mark to the next. Waits for the last.
  virtual std::vector<double> laps() = 0;
};

// A copy beside the calling rank's ops.
class Copying {
 public:
  virtual ~Copying() = default;  // waits, where nobody has
  // What the rank does from now on comes behind it.
  virtual void wait() = 0;
};

// What the calling rank's libraries are, what they chose, and what they would not do.
struct LibraryUse {
  std::vector<std::pair<std::string, std::string>> versions;
  struct Refusal {
    std::string library, why;
    std::int64_t times = 0;
  };
  std::vector<Refusal> refusals;
  std::vector<kernels::LibraryChoice> choices;
};

class Device {
 public:
  virtual ~Device() = default;
  virtual models::Device kind() const = 0;
  virtual std::string name() const = 0;
  virtual const kernels::KernelTable& kernels() const = 0;

  virtual std::unique_ptr<Region> reserve(Bytes most) = 0;
  // The host, as memory that this device copies from and to: its regions are page-locked where
  // asked for and where that is of use.
  virtual Device& host(bool pinned);
  // In the order of the calling rank's ops; `synchronize` waits for all of them.
  virtual void copy(void* to, const void* from, Bytes bytes) = 0;  // both on the device
  virtual void copy_in(void* to, const void* host, Bytes bytes) = 0;
  virtual void copy_out(void* host, const void* from, Bytes bytes) = 0;  // waits
  // The same beside what the rank does next. Until `wait`, nobody writes what is read or touches
  // what is written. Devices that copy at once need no others.
  virtual std::unique_ptr<Copying> start_copy_in(void* to, const void* host, Bytes bytes);
  virtual std::unique_ptr<Copying> start_copy_out(void* host, const void* from, Bytes bytes);
  virtual void fill_bytes(void* to, unsigned char value, Bytes bytes) = 0;
  virtual void synchronize() = 0;

  virtual std::unique_ptr<Stopwatch> stopwatch() = 0;  // of the calling rank
  virtual LibraryUse libraries() { return {}; }
};

Device& host_device();

}  // namespace plimsoll::runtime
