// Learned keys and values in a layer (peft 0.21, PrefixTuningConfig): the cache that attention
// gives its own to has them already, and returns both (transformers cache_utils.py,
// DynamicLayer.update).
#include <string>

#include "planner/stacks/pytorch/attention.h"

namespace plimsoll::planner::pytorch {

// Keys first; the cache lets go of what it had with each, or of a window's with both. The names of
// the layer's own keys and values are those of what update() returns.
void AttentionWriter::join_prefix(const AttentionNames& names, AttentionInput& in) {
  check(!packaged() || in.dtype == in.k_dtype, ErrorKind::bad_input, [&] {
    return std::string(
               "--attention flash-2 with --adapter prefix-tuning: flash_attn stops with "
               "\"query and key must have the same dtype\": keys behind a prefix in ") +
           std::string(name_of(in.k_dtype)) + " have its dtype, queries " +
           std::string(name_of(in.dtype)) + "; load the model in 16 bits (--param-dtype)";
  });
  const auto join = [&](const OperandNames& of, TensorId prefix, TensorId own, DType dtype) {
    const TensorId cached = make(of.cached, kv_values(), dtype);
    op(of.cached).read(prefix).read(own).write(cached);
    return cached;
  };
  const TensorId k = in.k;
  in.k = prefix_->cached_k = join(names.k, prefix_->k, in.k, in.k_dtype);
  in.v = prefix_->cached_v = join(names.v, prefix_->v, in.v, in.v_dtype);
  auto updated = op(names.v.cached).release(k);
  if (prefix_->window != kNoTensor) updated.release(prefix_->k).release(prefix_->v);
  b_.work().moves(0, 0);
}

// The sequence's own share of the gradient `d`, a view of it: CatBackward casts where torch.cat
// promoted.
Sum AttentionWriter::behind_prefix(const OperandNames& names, DType own, DType joined, Sum d) {
  const bool view = own == joined;
  const SymInt values = checked_multiply(tokens_.total(), d_.kv_width());
  return {.tensor = cast(names.cached_grad, d.tensor, values, joined, own),
          .view = view,
          .laid_out = d.laid_out,
          .apart = view && lays_out() ? names.grad_laid_out : nullptr};
}

}  // namespace plimsoll::planner::pytorch
