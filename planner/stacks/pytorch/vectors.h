// PEFT's vectors around a GEMM: IA3 (ia3.cpp), VeRA (vera.cpp).
#pragma once

#include "planner/stacks/pytorch/adapter.h"
#include "planner/stacks/pytorch/adapter_names.h"
#include "planner/stacks/pytorch/modules.h"

namespace plimsoll::planner::pytorch {

// Extents of its functions, beside all values.
inline constexpr tape::Extent kVectorWidth = 1, kVectorPartialSums = 2, kVectorCounters = 3;

class VectorWriter {
 public:
  // `input`: the dtype of what the linear reads.
  VectorWriter(ModuleWriter& writer, const LinearNames& names, const LinearPart& part, DType input)
      : w_(writer), names_(names), part_(part), input_(input) {}

  // Of the base too; `stops`: a recomputation, which makes no result.
  void ia3_forward(Ref x, Category category, bool stops, LinearSaved& s);
  Sum ia3_backward(bool input_grad, const LinearSaved& s, TensorId d_out, Sum sum, const Place& at);
  // Behind the base's GEMM.
  void vera_forward(Ref x, Category category, bool stops, LinearSaved& s);
  Sum vera_backward(bool input_grad, const LinearSaved& s, TensorId d_out, Sum sum,
                    const Place& at);

 private:
  Sum scaled_input_backward(bool input_grad, const LinearSaved& s, TensorId d_out, Sum sum,
                            const Place& at, TensorId& d_vector);
  TapePart scaled(const ModuleNames& of, bool grad) const;
  TapeCounts counts(std::int64_t width) const;  // of so many values a token, and a vector
  SymInt values(std::int64_t width) const { return w_.tokens_.total() * width; }
  OpBuilder op(const char* name) { return w_.op(name); }

  ModuleWriter& w_;
  const LinearNames& names_;
  const LinearPart& part_;
  DType input_;
};

}  // namespace plimsoll::planner::pytorch
