// Scaled dot product attention, by whatever runs it.
#pragma once

#include "planner/stacks/pytorch/attention_hopper.h"
#include "planner/stacks/pytorch/attention_input.h"
#include "planner/stacks/pytorch/modules.h"
#include "planner/stacks/pytorch/sdpa_workspaces.h"

namespace plimsoll::planner::pytorch {

class AttentionWriter : public ModuleWriter {
 public:
  using ModuleWriter::ModuleWriter;

  AttentionPath path() const;
  // Transformers builds a mask tensor where the kernel's own causal flag does not do: for eager
  // attention, for a sliding window that the sequence reaches, for padding, and for samples that
  // share a row. The flash_attn package knows windows, and where sequences begin.
  bool windowed() const { return slides() && !packaged() && !xformers(); }
  // Learned keys in front of the sequence's own are seen by all of its tokens.
  bool masked() const {
    return !packaged() && !flexes() &&
           (windowed() || tokens_.prefix > 0 || tokens_.rows != models::Rows::full);
  }
  bool needs_mask() const {
    return !d_.bidirectional && (path() == AttentionPath::eager || masked());
  }
  bool flexes() const { return strategy_.attention == models::Attention::flex; }
  // integrations/flash_attention.py: called with views of queries, keys and values, in groups.
  bool packaged() const { return models::is_flash_package(strategy_.attention); }
  bool xformers() const { return strategy_.attention == models::Attention::xformers; }
  bool cudnn() const;
  DType mask_dtype() const { return regime_.weight; }  // the embedding's
  // Of which layers it is asked: those with the decoder's window, or the others.
  void at_sliding(bool sliding) { sliding_ = sliding; }
  void set_masks(const ByWindow& masks, TensorId alibi) {
    model_masks_ = masks;
    alibi_ = alibi;
  }
  // What stands in front of the keys and values of the layer that follows (prefix.cpp).
  void set_prefix(PrefixSaved* prefix) { prefix_ = prefix; }

 protected:
  // Selective recomputation (Korthikanti et al., arXiv 2205.05198) checkpoints the core attention
  // alone: its operands stay, what it makes for itself is made again.
  bool selective() const { return strategy_.recompute.kind == models::RecomputeKind::selective; }
  void attention_forward(const AttentionNames& names, const AttentionInput& in,
                         AttentionSaved& saved);
  // The same where a fused kernel's `kept` results of another forward are taken.
  bool fuses_attention() const {
    return path() == AttentionPath::flash || path() == AttentionPath::efficient;
  }
  void attention_kept(const AttentionNames& names, const AttentionInput& in,
                      const AttentionSaved& kept, AttentionSaved& saved);
  // Gradients of q, k and v; kNoTensor where none is needed. `held`: the arguments of a selective
  // checkpoint, let go with its oldest node.
  std::array<TensorId, 3> attention_backward(const AttentionNames& names, const AttentionInput& in,
                                             const AttentionSaved& saved, TensorId d_out,
                                             std::span<const Ref> held);

  void join_prefix(const AttentionNames& names, AttentionInput& in);
  Sum behind_prefix(const OperandNames& names, DType own, DType joined, Sum d);

  // The dtype that the kernels run in.
  DType kernel(const AttentionInput& in) const {
    return regime_.autocast ? regime_.compute : in.dtype;
  }
  // Batched GEMMs need [batch·heads, s, d] with plain strides; one sequence has them already.
  bool lays_out() const { return tokens_.sequences > 1; }
  bool grouped() const { return d_.kv_heads < d_.heads; }
  // A mask behind a prefix, which is made in any case, is made of the window, too.
  bool slides() const { return sliding_ && (tokens_.prefix > 0 || tokens_.length >= d_.window); }
  bool copies_groups() const { return grouped() && d_.kv_heads > 1; }  // of one head: a view
  // Transformers makes queries, keys and values contiguous for SDPA. Flash and cuDNN then lay their
  // output out like the queries, [b, heads, s, d], and the layer reads a copy; the memory-efficient
  // kernel makes [b, s, heads, d] all the same.
  bool contiguous() const {
    return !d_.bare && strategy_.transformers >= models::kContiguousForSdpa &&
           strategy_.transformers < models::kStridedForSdpa && !packaged();
  }
  bool copies_out(const AttentionInput& in) const {
    return (contiguous() || in.heads_first) && (path() == AttentionPath::flash || flexes());
  }
  // It repeats keys and values over the query heads of their group.
  bool repeats() const;
  // models/llama/modeling_llama.py, repeat_kv: hidden_states[:, :, None, :, :].
  int slices_of_groups() const {
    return d_.bare || xformers() || strategy_.torch >= models::kWholeAxisIsNoSlice ? 0 : 4;
  }
  using Grads = std::array<TensorId, 3>;
  void flash_workspace(OpBuilder backward, const AttentionInput& in, const Grads& d);
  void efficient_workspace(OpBuilder backward, DType dtype);
  double fused_flops() const;
  SymInt q_values() const { return checked_multiply(tokens_.total(), d_.q_width()); }
  SymInt kv_values() const { return checked_multiply(tokens_.all_keys(), d_.kv_width()); }
  SymInt repeated_values() const { return checked_multiply(tokens_.all_keys(), d_.q_width()); }
  SymInt read_values() const { return repeats() ? repeated_values() : kv_values(); }  // as read
  TensorId model_mask() const { return model_masks_[sliding_ ? 1 : 0]; }
  bool sliding_ = false;
  ByWindow model_masks_{kNoTensor, kNoTensor};
  PrefixSaved* prefix_ = nullptr;
  TensorId alibi_ = kNoTensor;  // biases [batch·heads, 1, s] in the stream's dtype

 private:
  class Again;
  // `stops`: a recomputation, which ends with the last tensor that autograd saved.
  void run(const AttentionNames&, const AttentionInput&, bool stops, AttentionSaved&);
  AttentionInput prepare(const AttentionNames&, AttentionInput);
  SymBytes fused_operands(const AttentionNames&, const AttentionInput&, OpBuilder, AttentionSaved&);
  void save_fused(const AttentionNames&, DType dtype, AttentionSaved&);
  SdpaShape sdpa_shape(DType dtype) const;
  void forward_blocks(OpBuilder, SymBytes plain, DType, const AttentionSaved&);
  void fused_forward(const AttentionNames&, const AttentionInput&, bool stops, AttentionSaved&);
  Grads fused_backward(const AttentionNames&, const AttentionInput&, const AttentionSaved&,
                       TensorId d_out, std::span<const Ref> held);
  bool computes_sums() const { return !xformers() || phase_ != Phase::forward; }
  void group_by_group(const AttentionNames&, const AttentionInput&, AttentionSaved&);
  void xformers_workspace(OpBuilder, DType, const Grads&);
  void flex_forward(const AttentionNames&, const AttentionInput&, bool stops, AttentionSaved&);
  Grads flex_backward(const AttentionNames&, const AttentionInput&, const AttentionSaved&,
                      TensorId d_out, std::span<const Ref> held);
  std::array<SymBytes, 4> flash_blocks() const;
  HopperAttention hopper(bool soft_cap) const;
  // Where a tile's keys are divided: each part's logsumexp and result, in fp32.
  std::array<SymBytes, 2> split_blocks() const;
  void split_keys(OpBuilder, const AttentionSaved&);
  // The package's kernels for samples of several lengths (attention_varlen.cpp).
  bool varies() const { return packaged() && tokens_.rows != models::Rows::full; }
  bool unpads() const { return packaged() && tokens_.rows == models::Rows::padded; }
  SymInt real(SymInt values) const {
    return unpads() ? values / tokens_.total() * tokens_.real : values;
  }
  void varlen_operands(const AttentionNames&, const AttentionInput&, AttentionSaved&);
  TensorId pad(const AttentionNames&, const AttentionInput&, const AttentionSaved&);
  TensorId unpadded_gradient(const AttentionNames&, const AttentionSaved&, TensorId d_out);
  void pad_gradients(const AttentionNames&, const AttentionSaved&, DType, Grads& d);
  TensorId pad_gradient(const char* name, const AttentionSaved&, SymInt values, DType, TensorId d);
  SymBytes copied_out(const AttentionInput& in) const;
  // Attention that stores its scores (attention_stored.cpp).
  TapePart stored(const AttentionNames&, const AttentionInput&) const;
  TapeCounts stored_counts() const;
  void stored_forward(const AttentionNames&, const AttentionInput&, bool stops, AttentionSaved&);
  Grads stored_backward(const AttentionNames&, const AttentionInput&, const AttentionSaved&,
                        TensorId d_out, std::span<const Ref> held);
  TensorId sum_groups(const OperandNames&, TensorId d, DType dtype);
  std::array<TensorId, 3> casts_{kNoTensor, kNoTensor, kNoTensor};  // that were unpadded
  AttentionSaved again_;  // what selective recomputation made
};

}  // namespace plimsoll::planner::pytorch
