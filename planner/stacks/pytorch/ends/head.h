// The model's end: final norm, head and loss, forward and backward.
#pragma once

#include "planner/stacks/pytorch/offloading.h"
#include "planner/stacks/pytorch/wrappers/wrapper.h"

namespace plimsoll::planner::pytorch {

class HeadWriter : private StepPart {
 public:
  HeadWriter(Step& step, Wrapper& wrapper) : StepPart(step), wrapper_(wrapper) {}
  void finish_model();  // behind the last layer, to the end of the decoder's forward
  void loss_forward();
  void backward();
  SymBytes held_logits();  // from one forward to the next
  void declare_held_graph();  // loss_litgpt.cpp

 private:
  NormInput final_norm_input() const;
  TapePart norm_part() const;
  TapeCounts norm_counts() const;
  Ref norm_gradient_into() const;
  DType head_input() const, loss_dtype() const;
  bool shifts_logits() const, widens_logits() const, overwrites_logits() const;
  SymInt scored_tokens() const, fused_rows() const;
  int head_slices() const;
  void keep_last_input(), gather_tail(), project_out(), leave_model(), cache_projections();
  TensorId transform_head();
  void transform_back(TensorId d);
  void norm_backward(TensorId d);
  void release_cached_casts(), drop_cache(), widen_outputs();
  bool widens_outputs() const;
  DType cached_dtype() const;
  // TRL's tiles of logits (loss_tiled.cpp).
  struct Tile {
    TensorId logits = kNoTensor, rows = kNoTensor;
    SymBytes casts, last_slice;  // beside the last rows' at most; of the weight, to the end
  };
  SymInt tiled_rows() const;
  TensorId of_rows(const char* name, DType dtype, Category category);
  Tile begin_tile(Phase phase);
  void tile_gemm(double m, double n, double k), score_rows(), tiled_forward(), tiled_sums();
  void scatter_scores(TensorId log_probs, TensorId top);
  TensorId tiled_gradients(TensorId d_log_probs), tiled_backward();
  // Each loss by its own kernels; backwards return the gradient of the last norm's result.
  void targets(), flat_targets();
  TensorId kept_until_the_next(TensorId made);
  void full_forward(), chunked_forward(), fused_forward();
  TensorId full_backward(), chunked_backward(), fused_backward();
  TapePart logits_part() const, entropy_part() const;
  TapeCounts logits_counts(SymInt tokens) const;
  TapeCounts entropy_counts(SymInt tokens, TensorId targets) const;
  // Classes divided among ranks that share each sequence (loss_parallel.cpp).
  bool vocab_parallel() const { return d_.sequence_parts > 1; }
  void parallel_forward(), parallel_nll(TensorId log_softmax);
  TensorId parallel_head(), parallel_log_softmax(TensorId wide), parallel_backward();
  TensorId parallel_loss_backward();
  // A classifier of sequences, its loss and what BERT has before it (classifier.cpp).
  TapePart picked_part() const;
  TapeCounts picked_counts() const;
  void release_classifier(OpBuilder& returned) const;
  void classifier_forward(), pool(), pooled_back(TensorId d);
  TensorId classifier_backward(), drop_pooled();
  SymInt classified_tokens() const;
  std::int64_t classes() const { return d_.labels > 0 ? d_.labels : d_.vocab; }
  // The head inside the decoder, on parts of the tokens (loss_by_parts.cpp).
  bool heads_parts() const { return s_.heads_parts(); }
  void divide_tokens(), leave_after_head(), shift_labels(), count_tokens();
  void declare_units(), part_head_forward(HeadPart&, Ref gathered), parts_forward();
  void part_loss_forward(HeadPart&, TensorId& sum);
  TensorId parts_backward();
  // LitGPT's (loss_litgpt.cpp).
  void divide_logits(), litgpt_head(), litgpt_forward(), piece_targets(), piece_losses();
  void widen_and_hold(std::span<const TensorId> low, std::span<const SymInt> tokens);
  void join_losses(TensorId scored), piece_gradients();
  SymBytes wide_logits(SymInt tokens) const;
  bool lays_out(SymInt rows) const;
  SymBytes laid_out_inside(const LossPiece& piece, SymInt values, DType dtype) const;
  TensorId with_last_tokens(TensorId d, SymInt tokens), narrowed(TensorId d, SymInt tokens);
  TensorId litgpt_backward(), litgpt_full_backward(bool), litgpt_parts_backward(bool);
  void overwriting_cross_entropy(TensorId logits);
  TensorId overwriting_cross_entropy_backward();
  void fused_chunks(SymInt rows, DType normed), fused_work();
  void unsloth_forward();  // loss_unsloth.cpp
  SymInt unsloth_rows() const;

  void replace_held_graph();

  Wrapper& wrapper_;
  TensorId held_graph_ = kNoTensor;
  Packed packed_norm_, packed_logits_, packed_entropy_;  // on the host
};

}  // namespace plimsoll::planner::pytorch
