// The model's end: final norm, head and loss, forward and backward.
#pragma once

#include "planner/stacks/pytorch/wrappers/wrapper.h"

namespace plimsoll::planner::pytorch {

class HeadWriter : private StepPart {
 public:
  HeadWriter(Step& step, Wrapper& wrapper) : StepPart(step), wrapper_(wrapper) {}
  void finish_model();  // behind the last layer, to the end of the decoder's forward
  void loss_forward();
  void backward();

 private:
  NormInput final_norm_input() const;
  Ref norm_gradient_into() const;
  DType head_input() const, loss_dtype() const;
  bool shifts_logits() const, widens_logits() const, overwrites_logits() const;
  SymInt scored_tokens() const, fused_rows() const;
  int head_slices() const;
  void gather_tail(), project_out(), leave_model(), cache_projections();
  TensorId transform_head();
  void transform_back(TensorId d);
  void norm_backward(TensorId d);
  void release_cached_casts();
  // Each loss by its own kernels; backwards return the gradient of the last norm's result.
  void targets(), flat_targets();
  void full_forward(), chunked_forward(), fused_forward();
  TensorId full_backward(), chunked_backward(), fused_backward();
  TapePart logits_part() const, entropy_part() const;
  TapeCounts logits_counts(SymInt tokens) const;
  TapeCounts entropy_counts(SymInt tokens, TensorId targets) const;
  // The head inside the decoder, on parts of the tokens (loss_by_parts.cpp).
  bool heads_parts() const { return s_.heads_parts(); }
  void divide_tokens(), leave_after_head(), shift_labels(), count_tokens();
  void declare_units(), part_head_forward(HeadPart&, Ref gathered), parts_forward();
  void part_loss_forward(HeadPart&, TensorId& sum);
  TensorId parts_backward();
  void overwriting_cross_entropy(TensorId logits);
  TensorId overwriting_cross_entropy_backward();
  void fused_chunks(SymInt rows, DType normed), fused_work();

  Wrapper& wrapper_;
};

}  // namespace plimsoll::planner::pytorch
