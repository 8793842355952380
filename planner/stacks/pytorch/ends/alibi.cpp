// ALiBi: biases of attention's scores by distance.
#include <bit>

#include "planner/kernels_of_op.h"
#include "planner/stacks/pytorch/ends/embedding.h"

namespace plimsoll::planner::pytorch {

// transformers models/bloom/modeling_bloom.py, build_alibi_tensor: the slopes of a power of two of
// heads, base ** powers, and of the others with a base of their own, joined; the mask's running
// sum, - 1, times the mask; the slopes times that, fp32 [b, heads, s], in the stream's dtype. All
// locals go when it returns.
void EmbeddingWriter::alibi_biases() {
  const SymInt t = tokens_.all_keys(), heads = d_.heads;
  const auto power = static_cast<std::int64_t>(std::bit_floor(static_cast<std::uint64_t>(heads)));
  const SymInt biases = checked_multiply(t, heads);
  const bool casts = regime_.embedded != DType::fp32;
  s_.front.alibi = b_.tensor("alibi", storage(biases, regime_.embedded), Category::activations);
  auto made = b_.op("alibi", Phase::forward).read(s_.front.padding_mask).write(s_.front.alibi);
  KernelsOfOp kernels(b_);
  const auto slopes_of = [&](SymInt count) {
    kernels.take(layer_.fp32(1));
    kernels.take(layer_.bytes(count, DType::int32));
    return kernels.take(layer_.fp32(count));
  };
  const std::int32_t slopes = slopes_of(power);
  if (power != heads) {
    const std::int32_t others = slopes_of(heads - power);
    kernels.take(layer_.fp32(heads));
    kernels.drop(slopes);
    kernels.drop(others);
  }
  const std::int32_t sum = kernels.take(layer_.fp32(t));
  const std::int32_t less = kernels.take(layer_.fp32(t));
  kernels.drop(sum);
  kernels.take(layer_.fp32(t));
  kernels.drop(less);
  if (casts) kernels.take(layer_.fp32(biases));
  kernels.birth(s_.front.alibi, layer_.bytes(biases, regime_.embedded));
  kernels.finish(made);
}

}  // namespace plimsoll::planner::pytorch
