// What is where in the one block of scalars (models/decisions/step.h).
#pragma once

#include "models/decisions/step.h"
#include "runtime/memory.h"

namespace plimsoll::runtime {

// Views into the block. Nothing here is set by the constructor.
class Scalars {
 public:
  // `block`: at least decisions::kScalars bytes.
  explicit Scalars(TensorView block) : base_(static_cast<std::byte*>(block.data)) {
    check(storage(Count(block.elements()), block.dtype) >= models::decisions::kScalars,
          ErrorKind::internal, "the block of scalars has its size");
  }
  TensorView loss() const { return at(0, DType::fp64); }  // summed over micro-batches
  TensorView squares() const { return at(8, DType::fp64); }  // of all gradients
  TensorView norm() const { return at(16, DType::fp32); }  // their norm, without the loss scale
  TensorView factor() const { return at(20, DType::fp32); }  // what the optimizer multiplies by
  TensorView overflow() const { return at(24, DType::int32); }  // 1: the step is skipped

 private:
  TensorView at(std::ptrdiff_t offset, DType dtype) const { return {base_ + offset, dtype, {1}}; }
  std::byte* base_;
};

}  // namespace plimsoll::runtime
