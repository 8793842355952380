// What one rank works with, and the scope of an op.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "kernels/kernel_table.h"
#include "models/decisions/precision.h"
#include "runtime/memory.h"

namespace plimsoll::runtime {

using models::Category;
using models::Phase;

// One rank, one thread. Modules find here the arithmetic, the memory, and where in the step they
// are; the trainer moves `prefix`, `phase` and the counters on.
struct Worker {
  Worker(Device& on, int this_rank, const MemoryOptions& options)
      : device(on), kernels(on.kernels()), rank(this_rank), memory(on, this_rank, options) {}

  Device& device;
  const kernels::KernelTable& kernels;
  int rank = 0;
  Memory memory;
  // On the host, where optimizer states are offloaded to it (models/decisions/offload.h); else
  // null.
  std::unique_ptr<Memory> host_memory;
  models::decisions::Regime regime;
  std::int64_t sequences = 1, length = 1;  // of a micro-batch
  std::int64_t tokens() const { return sequences * length; }

  std::string prefix;  // of the names of ops and tensors: "layers.3."
  Phase phase = Phase::forward;

  // Dropout and stochastic rounding are keyed by (seed, step, stream) and the element's place in
  // the whole job's step, so that they are the same under any sharding and when made again.
  std::uint64_t seed = 0;
  std::uint32_t step = 0;
  std::int64_t first_sequence = 0;  // of this micro-batch, among all of the step's on all ranks

  Tensor workspace;  // the one fixed block (models/decisions/workspace.h)
  // Its beginning under a shape; ops of a rank follow one another, so each may use all of it.
  // Error{internal}: more than there is.
  TensorView scratch(DType dtype, Extents shape);
  // A second view behind the first `used` bytes.
  TensorView scratch_after(Bytes used, DType dtype, Extents shape);
};

// The part of an op of the step that the rank's memory on the host sees.
class HostOp {
 public:
  HostOp(Worker& worker, const char* name);
  ~HostOp() { memory_.ledger().end_op(); }
  HostOp(const HostOp&) = delete;
  HostOp& operator=(const HostOp&) = delete;

 private:
  Memory& memory_;
};

// An op of the step: from its beginning to the boundary at which the ledger is read. What it makes
// is allocated at once; what it consumes dies at its end and not before.
class Op {
 public:
  Op(Worker& worker, const char* name) : Op(worker, name, worker.phase) {}
  Op(Worker& worker, const char* name, Phase phase);
  ~Op();
  Op(const Op&) = delete;
  Op& operator=(const Op&) = delete;

  // `name` behind the worker's prefix. The compute dtype unless another is given.
  Tensor make(const char* name, Category category, Extents shape) {
    return make(name, category, worker_.regime.compute, shape);
  }
  Tensor make(const char* name, Category category, DType dtype, Extents shape);
  void consume(Tensor tensor) {
    if (tensor) consumed_.push_back(std::move(tensor));
  }

 private:
  Worker& worker_;
  std::vector<Tensor> consumed_;
};

}  // namespace plimsoll::runtime
