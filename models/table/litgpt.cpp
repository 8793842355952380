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

// LLaMAMLP.forward: both GEMMs, and then the product.
ValueId mlp_of(BlockBuilder& b, ValueId y) {
  const ValueId gate = b.linear("mlp.gate_proj", y);
  const ValueId up = b.linear("mlp.up_proj", y);
  const ValueId product =
      b.multiply("mlp.product", b.activation("mlp.act", gate, Activation::silu), up);
  const ValueId down = b.linear("mlp.down_proj", product);
  b.leave("mlp", {gate, up, product});
  return down;
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
  b.add("mlp", middle, mlp_of(b, y));
  b.release({kBlockInput, o, middle, y});
  return b.take();
}

}  // namespace

void add_litgpt(ModelSpec& model, const LlamaLike& d) {
  // With a window it makes masks, row by row, and a single head of keys and values it repeats, too
  // (CausalSelfAttention.forward).
  const bool has = !d.qkv_bias && !d.out_bias && !d.mlp_bias && !d.qk_norm && d.rotary_dim == 0 &&
                   d.window == 0 && (d.kv_heads > 1 || d.heads == 1);
  if (!model.decoder || !has) return;
  Decoder decoder = *model.decoder;
  decoder.bare = true;
  decoder.repeats_groups = decoder.repeats_heads_first = true;
  decoder.norm = NormKind::rms_norm_product;
  decoder.rotary_rows = d.positions;
  decoder.attention_dropout = 0;
  decoder.tied_head = false;  // model.py, GPT: lm_head is a module of its own
  model.other_forwards.push_back({ModelCode::litgpt_0_5_13,
                                  {},
                                  decoder,
                                  {std::make_shared<const Block>(litgpt_block(model, d))},
                                  kJoined,
                                  true});
}

}  // namespace plimsoll::models::families
