#include "models/table/litgpt.h"

#include <array>
#include <utility>

namespace plimsoll::models::families {

namespace {

constexpr JoinedModules kJoined{"self_attn.qkv_proj",
                                {"self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"}};

// The table with the three as one.
std::vector<ParameterRow> with_joined(std::vector<ParameterRow> rows, const LlamaLike& d) {
  const auto named = [](const ParameterRow& row, std::string_view module) {
    return row.name.find("." + std::string(module) + ".") != row.name.npos;
  };
  std::erase_if(rows, [&](const ParameterRow& row) {
    return named(row, kJoined.of[1]) || named(row, kJoined.of[2]);
  });
  for (ParameterRow& row : rows) {
    if (!named(row, kJoined.of[0])) continue;
    row.name.replace(row.name.find(kJoined.of[0]), kJoined.of[0].size(), kJoined.name);
    row.shape.axes[0] = checked_multiply(d.heads + 2 * d.kv_heads, d.head_dim);
  }
  return rows;
}

// litgpt 0.5.13, model.py, CausalSelfAttention.forward holds the joined projection, queries and
// keys, what rotation made of them before, and attention's result; copies of keys and values take
// their names.
ValueId attention_of(BlockBuilder& b, const LlamaLike& d, ValueId x) {
  const std::int64_t q_width = d.heads * d.head_dim, kv_width = d.kv_heads * d.head_dim;
  const ValueId qkv = b.linear(kJoined.name, x);
  const ValueList parts = b.split("self_attn.qkv", qkv, {q_width, kv_width, kv_width});
  const ValueList rotated = b.joined_rotary("self_attn", parts, q_width, kv_width);
  const ValueList attention =
      b.attention("self_attn", rotated[0], rotated[1], parts[2], EagerSoftmax::fp32);
  const ValueId o = b.linear("self_attn.o_proj", attention[0]);
  const bool copies = d.kv_heads > 1 && d.kv_heads < d.heads;
  b.leave("self_attn",
          copies ? ValueList{qkv, rotated[2], rotated[3], rotated[0], attention[0]}
                 : ValueList{qkv, rotated[2], rotated[3], rotated[0], rotated[1], attention[0]});
  return o;
}

// litgpt 0.3.0 and 0.4.13: queries, keys and values lie group by group. Where a group has several
// queries, all three are laid out anew, keys and values once for each query, before rotation.
ValueId grouped_attention_of(BlockBuilder& b, const LlamaLike& d, ValueId x) {
  const std::int64_t q_width = d.heads * d.head_dim, kv_width = d.kv_heads * d.head_dim;
  const ValueId qkv = b.linear(kJoined.name, x);
  ValueList parts = b.split("self_attn.qkv", qkv, {q_width, kv_width, kv_width}, d.kv_heads);
  if (d.kv_heads < d.heads) {
    const ValueId q = b.expand("self_attn.q.expanded", parts[0], q_width);
    const ValueId k = b.expand("self_attn.k.expanded", parts[1], q_width);
    parts = {q, k, b.expand("self_attn.v.expanded", parts[2], q_width)};
  }
  const ValueList rotated = b.joined_rotary("self_attn", parts, q_width, q_width);
  const ValueList attention =
      b.attention("self_attn", rotated[0], rotated[1], parts[2], EagerSoftmax::fp32);
  const ValueId o = b.linear("self_attn.o_proj", attention[0]);
  b.leave("self_attn",
          {qkv, rotated[2], rotated[3], rotated[0], rotated[1], parts[2], attention[0]});
  return o;
}

// LLaMAMLP.forward: both GEMMs, and then the product. `held`: by its caller until it returns.
ValueId mlp_of(BlockBuilder& b, ValueId y, ValueList held) {
  const ValueId gate = b.linear("mlp.gate_proj", y);
  const ValueId up = b.linear("mlp.up_proj", y);
  const ValueId product =
      b.multiply("mlp.product", b.activation("mlp.act", gate, Activation::silu), up);
  const ValueId down = b.linear("mlp.down_proj", product);
  for (const ValueId id : {gate, up, product}) held.push_back(id);
  b.leave("mlp", held);
  return down;
}

// Block.forward of 2024: the names of the first norm's result, of what attention returned and of
// the sum stay.
Block block_of_2024(const ModelSpec& model, const LlamaLike& d, ModuleClass norm) {
  BlockBuilder b(with_joined(model.parameters, d), d.hidden, norm);
  const ValueId x = b.norm("input_layernorm", kBlockInput);
  const ValueId o = grouped_attention_of(b, d, x);
  const ValueId middle = b.add("self_attn", kBlockInput, o);
  const ValueId y = b.norm("post_attention_layernorm", middle);
  b.add("mlp", middle, mlp_of(b, y, {y}));
  b.release({kBlockInput, x, o, middle});
  return b.take();
}

// Block.forward: the first norm's result has a name that the second's takes; the names of what
// attention returned and of the sum stay.
Block litgpt_block(const ModelSpec& model, const LlamaLike& d) {
  BlockBuilder b(with_joined(model.parameters, d), d.hidden, ModuleClass::rms_norm_product);
  const ValueId x = b.norm("input_layernorm", kBlockInput);
  const ValueId o = attention_of(b, d, x);
  const ValueId middle = b.add("self_attn", kBlockInput, o);
  const ValueId y = b.norm("post_attention_layernorm", middle);
  b.leave("post_attention_layernorm", {x});
  b.add("mlp", middle, mlp_of(b, y, {}));
  b.release({kBlockInput, o, middle, y});
  return b.take();
}

}  // namespace

void add_litgpt(ModelSpec& model, const LlamaLike& d) {
  const bool has = !d.qkv_bias && !d.out_bias && !d.mlp_bias && !d.qk_norm && d.rotary_dim == 0;
  if (!model.decoder || !has) return;
  Decoder decoder = *model.decoder;
  decoder.bare = true;
  decoder.rotary_rows = d.positions;
  decoder.attention_dropout = 0;
  decoder.tied_head = false;  // model.py, GPT: lm_head is a module of its own
  const auto add = [&](ModelCode code, NormKind norm, Block block) {
    decoder.norm = norm;
    model.other_forwards.push_back(
        {code, {}, decoder, {std::make_shared<const Block>(std::move(block))}, kJoined, true});
  };
  // With a window it makes masks, row by row, and a single head of keys and values it repeats, too
  // (CausalSelfAttention.forward).
  if (d.window == 0 && (d.kv_heads > 1 || d.heads == 1)) {
    decoder.repeats_groups = decoder.repeats_heads_first = true;
    add(ModelCode::litgpt_0_5_13, NormKind::rms_norm_product, litgpt_block(model, d));
    decoder.repeats_groups = decoder.repeats_heads_first = false;
  }
  decoder.kv_heads = d.heads;
  if (d.window == 0)
    add(ModelCode::litgpt_0_4_13, NormKind::rms_norm_product,
        block_of_2024(model, d, ModuleClass::rms_norm_product));
  decoder.window = 0;  // config.py: not implemented in 0.3.0
  add(ModelCode::litgpt_0_3_0, NormKind::rms_norm_product_low,
      block_of_2024(model, d, ModuleClass::rms_norm_product_low));
}

}  // namespace plimsoll::models::families
