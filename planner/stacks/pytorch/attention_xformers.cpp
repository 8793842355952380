// xformers' memory_efficient_attention as Unsloth calls it (unsloth 2025.11.6, models/llama.py,
// mistral.py and qwen3.py; xformers 0.0.29 to 0.0.35, ops/fmha/__init__.py and cutlass.py). Before
// Ampere its operators are PyTorch's own memory-efficient kernel.
#include "planner/kernels_of_op.h"
#include "planner/stacks/pytorch/attention.h"
#include "planner/stacks/pytorch/sdpa_workspaces.h"

namespace plimsoll::planner::pytorch {

// Without autograd, as in a checkpoint's forward, keys and values stay grouped (BMGHK), and
// FwOp.apply calls the kernel for each group, but the first on a stream of its own; torch.stack
// then copies their results. No sums of rows are made.
void AttentionWriter::group_by_group(const AttentionNames& names, const AttentionInput& in,
                                     AttentionSaved& s) {
  const DType dtype = kernel(in);
  auto attention = op(names.out);
  attention.read(in.q).read(in.k).read(in.v);
  b_.work().attends({false, dtype, fused_flops()});
  s.out = s.fused_out = make(names.out, q_values(), dtype);
  attention.write(s.fused_out);
  const SymInt values = checked_multiply(tokens_.total(), d_.q_width() / d_.kv_heads);
  const SymBytes result = b_.rounded(bytes(values, dtype));
  KernelsOfOp kernels(b_);
  kernels.take(result);
  for (std::int64_t group = 1; group < d_.kv_heads; ++group) kernels.take_beside(result);
  kernels.birth(s.fused_out, b_.bytes_of(s.fused_out));
  kernels.finish(attention);
  b_.work().moves(2 * bytes(q_values(), dtype).real());
}

// _fMHA returns the sums of rows beside its result, for whose gradient autograd makes zeros.
void AttentionWriter::xformers_workspace(OpBuilder backward, DType dtype, const Grads& d) {
  const SdpaShape shape = sdpa_shape(dtype);
  const SymBytes zeros = b_.rounded(
      fp32(checked_multiply(tokens_.sequences * d_.heads, round_up(tokens_.length, 32))));
  const SymBytes delta = b_.rounded(fp32(checked_multiply(tokens_.total(), d_.heads)));
  const SymBytes sums = b_.rounded(efficient_backward(shape, rules_.gpu));
  BlockEvents events;
  events.take(zeros);
  for (const TensorId gradient : d) events.birth(gradient);
  events.take(delta);
  events.take(sums);
  backward.scratch(zeros + delta + sums, Category::workspace);
  if (b_.keeps_blocks()) b_.blocks(std::move(events));
}

}  // namespace plimsoll::planner::pytorch
