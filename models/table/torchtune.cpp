#include "models/table/torchtune.h"

#include <algorithm>
#include <utility>

namespace plimsoll::models::families {

namespace {

// torchtune 0.6.1, modules/attention.py: MultiHeadAttention.forward holds what it read and made.
// Queries are rotated before keys are projected; keys and values are repeated for the query heads
// of their group, and the copies take their names.
ValueId attention_of(BlockBuilder& b, const LlamaLike& d, ValueId x) {
  const ValueId q = b.pair_rotary("self_attn.q", b.linear("self_attn.q_proj", x));
  const ValueId projected = b.linear("self_attn.k_proj", x);
  const ValueId v = b.linear("self_attn.v_proj", x);
  const ValueId k = b.pair_rotary("self_attn.k", projected);
  const ValueList attention = b.attention("self_attn", q, k, v, EagerSoftmax::fp32);
  const ValueId o = b.linear("self_attn.o_proj", attention[0]);
  const bool copies = d.kv_heads > 1 && d.kv_heads < d.heads;
  b.leave("self_attn", copies ? ValueList{q, attention[0]} : ValueList{q, k, v, attention[0]});
  return o;
}

// FeedForward's w1, w2, w3 are gate, down and up (modules/feed_forward.py).
std::vector<ParameterRow> in_its_order(std::vector<ParameterRow> rows) {
  const auto find = [&](std::string_view module) {
    return std::ranges::find_if(
        rows, [&](const ParameterRow& row) { return row.name.find(module) != row.name.npos; });
  };
  std::iter_swap(find(".mlp.up_proj."), find(".mlp.down_proj."));
  return rows;
}

// modules/transformer.py, TransformerSelfAttentionLayer.forward: `h` is the first norm's result
// until the sum takes its place; what attention returned is held to the end.
Block torchtune_block(const ModelSpec& model, const LlamaLike& d) {
  BlockBuilder b(in_its_order(model.parameters), d.hidden, ModuleClass::rms_norm_composite);
  const ValueId x = b.norm("input_layernorm", kBlockInput);
  const ValueId o = attention_of(b, d, x);
  const ValueId middle = b.add("self_attn", kBlockInput, o);
  b.release({x});
  const ValueId y = b.norm("post_attention_layernorm", middle);
  b.add("mlp", middle, gated_mlp(b, y));
  b.release({kBlockInput, o});
  return b.take();
}

}  // namespace

void add_torchtune(ModelSpec& model, const LlamaLike& d) {
  const bool has = !d.qkv_bias && !d.out_bias && !d.mlp_bias && !d.qk_norm &&
                   checked_multiply(d.heads, d.head_dim) == d.hidden;
  if (!model.decoder || !has) return;
  Decoder decoder = *model.decoder;
  decoder.bare = decoder.holds_stream = true;
  decoder.repeats_groups = decoder.repeats_heads_first = true;
  decoder.norm = NormKind::rms_norm_composite;
  decoder.rotary_rows = d.positions;
  decoder.attention_dropout = 0;
  decoder.window = 0;  // its Mistral attends to everything (models/mistral/_component_builders.py)
  model.other_forwards.push_back({ModelCode::torchtune_0_6_1,
                                  {},
                                  decoder,
                                  {std::make_shared<const Block>(torchtune_block(model, d))}});
}

}  // namespace plimsoll::models::families
