// What hooks take of attention, and of a block's activations and products (saved_hooks.h).
#include "planner/stacks/pytorch/block_writer.h"

namespace plimsoll::planner::pytorch {

using models::ValueId;

// Queries, keys, values and the result are views of [b, s, heads, d].
void AttentionWriter::save_fused(const AttentionNames& names, DType dtype, AttentionSaved& s) {
  const SymBytes keys = storage(read_values(), dtype), queries = storage(q_values(), dtype);
  const bool strided = d_.heads > 1, strided_keys = d_.kv_heads > 1;
  hooks_.save({s.k}, keys, strided_keys ? names.k.laid_out : nullptr);
  hooks_.save({s.q}, queries, strided ? names.q.laid_out : nullptr);
  hooks_.save({s.v}, keys, strided_keys ? names.v.laid_out : nullptr);
  hooks_.save({s.lse}, storage(tokens_.total() * d_.heads, DType::fp32));
  hooks_.save({s.fused_out}, queries, strided ? names.out : nullptr);
  hooks_.save({s.offset}, storage(1, DType::int64));
  hooks_.save({s.seed}, storage(2, DType::int64));
  s.node = hooks_.end_node();
}

// What hooks take of an activation or a product.
void BlockWriter::save_values(const NodePlan& at, std::array<ValueId, 2> values, LayerSaved& s) {
  if (!hooks_.any() || !saves_ || !at.grad) return;
  for (const ValueId id : values)
    if (id != models::kNoValue) hooks_.save(value(s, id), storage(values_of(id), dtype_of(id)));
  s.nodes[plan_->place_of(at)] = hooks_.end_node();
}

}  // namespace plimsoll::planner::pytorch
