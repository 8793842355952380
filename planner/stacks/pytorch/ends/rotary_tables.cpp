// Tables of the rotary position embedding, which the model makes once for all layers.
#include <tuple>

#include "planner/kernels_of_op.h"
#include "planner/stacks/pytorch/ends/embedding.h"

namespace plimsoll::planner::pytorch {

// Tables of one sequence; in fp32: positions, angles [d/2], emb [d], then cos, cos·scale, sin,
// sin·scale with cos and sin freed in turn, then the casts.
// Gemma 3 has tables for each kind of layer that it has. GPT-OSS's are the angles' own: there is no
// emb, and a GEMM makes them in every release.
void EmbeddingWriter::rotary_tables() {
  const bool both = d_.has_both_rotaries();
  for (std::size_t kind = 0; kind < (both ? 2 : 1); ++kind)
    std::tie(s_.cos[kind], s_.sin[kind]) = rotary_table();
  if (both) return;
  s_.cos[1] = s_.cos[0];
  s_.sin[1] = s_.sin[0];
}

std::pair<TensorId, TensorId> EmbeddingWriter::rotary_table() {
  const SymInt s = tokens_.length, angles = checked_multiply(s, d_.rotated() / 2);
  const SymInt values = d_.half_rotary ? angles : checked_multiply(s, d_.rotated());
  const DType dtype = d_.fp32_rotary ? DType::fp32 : regime_.embedded;
  const auto table = [&](const char* name) {
    return b_.tensor(name, storage(values, dtype), Category::activations);
  };
  const TensorId cos = table("rotary.cos"), sin = table("rotary.sin");
  const bool multiplies = !d_.half_rotary && strategy_.transformers >= models::kRotaryMultiplies;
  auto rotary = b_.op("rotary", Phase::forward);
  rotary.write(cos).write(sin);
  KernelsOfOp kernels(b_);
  // FSDP1 casts buffers, and inv_freq is needed in fp32.
  if (wrapper_.buffer_dtype() != DType::fp32) kernels.take(layer_.fp32(d_.rotated() / 2));
  if (!multiplies) kernels.take(layer_.fp32(s));  // positions
  kernels.take(layer_.fp32(angles));
  kernels.workspace();
  if (!d_.half_rotary) kernels.take(layer_.fp32(values));
  const bool casts = dtype != DType::fp32;
  const auto scaled = [&](TensorId out) {
    const std::int32_t one = kernels.take(layer_.fp32(values));
    if (casts)
      kernels.take(layer_.fp32(values));
    else
      kernels.birth(out, layer_.fp32(values));
    kernels.drop(one);
  };
  scaled(cos);
  scaled(sin);
  if (casts)
    for (const TensorId out : {cos, sin}) kernels.birth(out, layer_.bytes(values, dtype));
  kernels.finish(rotary);
  if (!multiplies) layer_.take_workspace(rotary, false);  // a GEMM of one column
  return {cos, sin};
}

}  // namespace plimsoll::planner::pytorch
