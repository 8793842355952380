// Which kernel attention runs, and what the fused ones take beside their results.
#include <bit>

#include "planner/kernels_of_op.h"
#include "planner/stacks/pytorch/attention.h"
#include "planner/stacks/pytorch/sdpa_workspaces.h"

namespace plimsoll::planner::pytorch {

using models::Attention;

// SDPA takes the first backend that can (ATen/native/transformers/cuda/sdp_utils.cpp): flash and
// cuDNN need 16 bits and, flash, no mask; the memory-efficient kernel knows no grouped queries.
// Transformers leaves grouped queries to SDPA only where there is no mask
// (integrations/sdpa_attention.py, use_gqa_in_sdpa); with one it repeats keys and values itself, as
// older releases always do.
AttentionPath AttentionWriter::path() const {
  if (strategy_.attention == Attention::eager) return AttentionPath::eager;
  if (strategy_.attention == Attention::math) return AttentionPath::math;
  if (strategy_.attention == Attention::efficient || xformers()) return AttentionPath::efficient;
  if (flexes()) return AttentionPath::flex;
  if (packaged() || cudnn()) return AttentionPath::flash;
  const bool no_flash = rules_.sdpa == Rules::Sdpa::efficient;
  if (no_flash && regime_.compute == DType::bf16) return AttentionPath::math;
  if (masked()) return AttentionPath::efficient;
  if (regime_.compute != DType::fp32 && !no_flash) return AttentionPath::flash;
  return grouped() && !repeats() ? AttentionPath::math : AttentionPath::efficient;
}

// flex_attention.py, num_local_query_heads: of heads that are no power of two.
bool AttentionWriter::repeats() const {
  const bool asked = masked() || strategy_.transformers < models::kSdpaTakesGroups;
  if (packaged()) return grouped() && regime_.patch.repeats_groups;
  if (xformers()) return grouped() && computes_sums();
  if (flexes()) return grouped() && !std::has_single_bit(static_cast<std::uint64_t>(d_.heads));
  return grouped() && (d_.bare ? d_.repeats_groups : asked);
}

bool AttentionWriter::cudnn() const {
  if (strategy_.attention == Attention::cudnn) return true;
  return strategy_.attention == Attention::flash && rules_.sdpa == Rules::Sdpa::cudnn &&
         regime_.compute != DType::fp32 && cudnn_has(d_.head_dim, tokens_.keys(), rules_.gpu);
}

SdpaShape AttentionWriter::sdpa_shape(DType dtype) const {
  return {.sequences = tokens_.sequences,
          .length = tokens_.length,
          .keys = tokens_.keys(),
          .heads = d_.heads,
          .head_dim = d_.head_dim,
          .groups = grouped() && !repeats(),
          .dropout = d_.attention_dropout > 0,
          .half = dtype != DType::fp32};
}

std::array<SymBytes, 2> AttentionWriter::split_blocks() const {
  const bool never = d_.attention_dropout > 0 || varies() || cudnn() ||
                     strategy_.attention == Attention::flash_1 ||
                     strategy_.attention == Attention::flash_3;
  const SymInt rows = checked_multiply(tokens_.sequences, d_.heads);
  const SymInt splits =
      never ? SymInt(1)
            : flash_key_splits(rules_.gpu, rows, tokens_.length, tokens_.keys(), d_.head_dim);
  if (splits == 1) return {};
  const SymInt width = d_.head_dim <= 192 ? round_up(d_.head_dim, 32) : SymInt(256);
  const SymInt sums = checked_multiply(splits, checked_multiply(rows, tokens_.length));
  return {fp32(sums), fp32(checked_multiply(sums, width))};
}

void AttentionWriter::split_keys(OpBuilder attention, const AttentionSaved& s) {
  const std::array<SymBytes, 2> parts = split_blocks();
  if (parts[0] == Bytes(0)) return;
  KernelsOfOp kernels(b_);
  for (const TensorId made : {s.fused_out, s.lse}) kernels.birth(made, b_.bytes_of(made));
  for (const SymBytes part : parts) kernels.take(part);
  for (const TensorId made : {s.seed, s.offset}) kernels.birth(made, b_.bytes_of(made));
  kernels.finish(attention);
}

// In the order in which a kernel asks: the mask as it was (`plain`) goes before its results are
// there; cuDNN's random state comes first (attention.cu, _cudnn_attention_forward), its workspace,
// or the memory-efficient kernel's sums, last.
void AttentionWriter::forward_blocks(OpBuilder attention, SymBytes plain, DType dtype,
                                     const AttentionSaved& s) {
  SymBytes own;
  if (cudnn()) own = cudnn_forward(sdpa_shape(dtype), rules_.gpu);
  if (path() == AttentionPath::efficient) own = efficient_forward(sdpa_shape(dtype));
  if (!cudnn() && plain + own == Bytes(0)) return;
  KernelsOfOp kernels(b_);
  if (plain > Bytes(0)) {
    const std::int32_t before = kernels.take(plain);
    kernels.birth(s.mask, b_.bytes_of(s.mask));
    kernels.drop(before);
  }
  std::array<TensorId, 4> made{s.fused_out, s.lse, s.seed, s.offset};
  if (cudnn()) made = {s.seed, s.offset, s.fused_out, s.lse};
  for (const TensorId tensor : made)
    if (tensor != kNoTensor) kernels.birth(tensor, b_.bytes_of(tensor));
  if (own > Bytes(0)) kernels.take(own);
  kernels.finish(attention);
}

// Backward workspace in 16 bits, in one call.
//   flash (flash-attention 2, csrc/flash_attn/flash_api.cpp, mha_bwd; PyTorch's copy of it and the
//   package's are alike): the row sums of dO·O in fp32
//   [b, heads, s rounded to 128], dQ accumulated in fp32 [b, s rounded, heads, d rounded to 32],
//   and with fewer key heads than query heads dK and dV of all query heads in the low dtype.
//   cuDNN: one block (sdpa_workspaces.h).
std::array<SymBytes, 4> AttentionWriter::flash_blocks() const {
  if (cudnn()) return {cudnn_backward(sdpa_shape(regime_.compute), rules_.gpu)};
  const SymInt b = tokens_.sequences, rounded = round_up(tokens_.length, 128);
  const SymBytes expanded =
      grouped() && !repeats() ? bytes(repeated_values(), regime_.compute) : SymBytes();
  if (varies()) {  // mha_varlen_bwd: 128 rows more for each sample
    const SymInt rows = real(tokens_.total()) + checked_multiply(128, tokens_.samples);
    const SymBytes of_heads = grouped() ? bytes(real(q_values()), regime_.compute) : SymBytes();
    return {fp32(checked_multiply(rows, d_.heads)),
            fp32(checked_multiply(rows, d_.heads * round_up(d_.head_dim, 32))), of_heads, of_heads};
  }
  return {fp32(checked_multiply(b * d_.heads, rounded)),
          fp32(checked_multiply(b * rounded, d_.heads * round_up(d_.head_dim, 32))), expanded,
          expanded};
}

// attention_backward.cu, _flash_attention_backward: `out.contiguous()` as [b, s, heads, d], which
// is a copy where the output was laid out like the queries. cuDNN and the flash_attn package take
// any strides of the first axes (flash_attn_interface.py, maybe_contiguous).
SymBytes AttentionWriter::copied_out(const AttentionInput& in) const {
  const bool copies = (in.heads_first || hooks_.any()) && !cudnn() && !packaged();
  return copies ? bytes(q_values(), regime_.compute) : SymBytes();
}

void AttentionWriter::flash_workspace(OpBuilder backward, const AttentionInput& in,
                                      const Grads& d) {
  const SymBytes copied = copied_out(in);
  SymBytes all = copied;
  BlockEvents events;
  if (copied > Bytes(0)) {
    events.take(copied);
    for (const TensorId gradient : d) events.birth(gradient);
  }
  const auto take = [&](SymBytes block) {
    events.take(block);
    all += block;
  };
  if (strategy_.attention == Attention::flash_3)
    for (const SymInt values : hopper_backward(hopper(in.soft_cap))) take(fp32(values));
  else
    for (const SymBytes block : flash_blocks()) take(block);
  backward.scratch(all, Category::workspace);
  if (b_.keeps_blocks()) b_.blocks(std::move(events));
}

// attention_backward.cu, _efficient_attention_backward: the row sums delta [b, heads, s] in fp32,
// and sums of the gradients (sdpa_workspaces.h). In fp32 delta is made by torch operators: a
// product as large as q, its sums, and their copy.
void AttentionWriter::efficient_workspace(OpBuilder backward, DType dtype) {
  const SymBytes delta = fp32(checked_multiply(tokens_.total(), d_.heads));
  const SymBytes sums = b_.rounded(efficient_backward(sdpa_shape(dtype), rules_.gpu));
  SymBytes highest = delta + sums;
  BlockEvents events;
  if (dtype == DType::fp32) {
    const SymBytes product = fp32(q_values());
    highest = larger(highest, product + delta * 2);
    const auto first = events.take(product), sum = events.take(delta);
    events.take(delta);
    events.drop(first);
    events.drop(sum);
  } else {
    events.take(delta);
  }
  events.take(sums);
  backward.scratch(highest, Category::workspace);
  if (b_.keeps_blocks()) b_.blocks(std::move(events));
}

}  // namespace plimsoll::planner::pytorch
