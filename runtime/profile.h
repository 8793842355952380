// What each kernel call took, and what it had to do: bytes and FLOPs by its operands. One rank's.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "runtime/device.h"
#include "runtime/ledger.h"

namespace plimsoll::runtime {

struct KernelCost {
  std::string op;  // as the ledger names it; "" between two ops
  models::Phase phase = models::Phase::forward;
  std::string kernel;  // a name of kernels/kernel_table.h, or a copy
  double seconds = 0;  // on the device
  // Every operand read once, every result written once; scratch is not counted.
  double bytes = 0;
  double flops = 0;  // of GEMMs and attention (causal: what the mask leaves)
};

// A device that does the same, and between `begin` and `end` notes what every kernel and copy of
// the calling thread takes. Otherwise it costs a branch for each call.
class Profile {
 public:
  explicit Profile(Device& device);
  ~Profile();
  Device& device();
  // `ledger` says which op it is.
  void begin(const Ledger& ledger);
  // In the order of their calls. Waits for the device.
  std::vector<KernelCost> end();

 private:
  class Profiled;
  std::unique_ptr<Profiled> device_;
};

}  // namespace plimsoll::runtime
