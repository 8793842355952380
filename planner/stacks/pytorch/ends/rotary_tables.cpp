// Tables of the rotary position embedding, which the model makes once for all layers.
#include <algorithm>
#include <tuple>

#include "planner/stacks/pytorch/ends/embedding.h"

namespace plimsoll::planner::pytorch {

// Tables of one sequence; in fp32: positions, angles [d/2], emb [d], then cos, cos·scale, sin,
// sin·scale with cos and sin freed in turn, then the casts: 4 + 18 d bytes a position before them.
// Gemma 3 has tables for each kind of layer that it has.
void EmbeddingWriter::rotary_tables() {
  const bool both = d_.has_both_rotaries();
  for (std::size_t kind = 0; kind < (both ? 2 : 1); ++kind)
    std::tie(s_.cos[kind], s_.sin[kind]) = rotary_table();
  if (both) return;
  s_.cos[1] = s_.cos[0];
  s_.sin[1] = s_.sin[0];
}

std::pair<TensorId, TensorId> EmbeddingWriter::rotary_table() {
  const std::int64_t s = tokens_.length, values = checked_multiply(s, d_.rotated());
  const DType dtype = d_.fp32_rotary ? DType::fp32 : regime_.residual;
  const auto table = [&](const char* name) {
    return b_.tensor(name, storage(Count(values), dtype), Category::activations);
  };
  const TensorId cos = table("rotary.cos"), sin = table("rotary.sin");
  const Bytes emb = layer_.fp32(values);
  // FSDP1 casts buffers, and inv_freq is needed in fp32.
  const Bytes frequencies =
      wrapper_.buffer_dtype() == DType::fp32 ? Bytes(0) : layer_.fp32(d_.rotated() / 2);
  const bool multiplies = strategy_.transformers >= models::kRotaryMultiplies;
  const Bytes positions = multiplies ? Bytes(0) : layer_.fp32(s);
  const Bytes before = frequencies + positions + layer_.fp32(values / 2) + emb;
  const Bytes cast = layer_.bytes(values, dtype) * 2;
  const bool casts = dtype != DType::fp32;
  const Bytes most = std::max(before + emb * 3, before + emb * 2 + (casts ? cast : Bytes(0)));
  auto rotary = b_.op("rotary", Phase::forward);
  rotary.write(cos).write(sin).scratch(most - cast);
  if (!multiplies) layer_.take_workspace(rotary, false);  // a GEMM of one column
  return {cos, sin};
}

}  // namespace plimsoll::planner::pytorch
