// Ranks that share each sequence between attention and MLP: torch's tensor parallelism with
// SequenceParallel norms (torch/distributed/tensor/parallel/style.py).
#pragma once

#include "planner/stacks/pytorch/modules.h"

namespace plimsoll::planner::pytorch {

// What they gather and scatter. What is cut by rank is a temporary and no message's buffer: kernels
// make it or read it, and their time counts.
class SequenceWriter {
 public:
  explicit SequenceWriter(ModuleWriter& writer) : w_(writer) {}
  // All of what each has a part of, `values` in all.
  TensorId gather(const char* by_rank, const char* name, Ref part, SymInt values, DType dtype,
                  Category category);
  // This rank's part of the sum of what each has, `values` each.
  TensorId scatter(const char* by_rank, const char* name, TensorId whole, SymInt values,
                   DType dtype, Category category);
  // The same as it is sent: where what comes of it is there already.
  TensorId lay_out(const char* by_rank, TensorId whole, SymInt values, DType dtype);

 private:
  ModuleWriter& w_;
};

}  // namespace plimsoll::planner::pytorch
