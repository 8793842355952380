#include "models/table/llama_like.h"
#include "models/table/numerics.h"

namespace plimsoll::models::families {

namespace {
// Llama with q, k, v in one matrix and gate, up in another.
void add_block(Table& table, const LlamaLike& d) {
  const std::int64_t q_width = checked_multiply(d.heads, d.head_dim);
  const std::int64_t kv_width = checked_multiply(d.kv_heads, d.head_dim);
  table.linear("self_attn.o_proj", q_width, d.hidden);
  table.linear("self_attn.qkv_proj", d.hidden, checked_add(q_width, checked_multiply(2, kv_width)));
  table.linear("mlp.gate_up_proj", d.hidden, checked_multiply(2, d.ffn));
  table.linear("mlp.down_proj", d.ffn, d.hidden);
  table.rms_norm("input_layernorm", d.hidden);
  table.rms_norm("post_attention_layernorm", d.hidden);
}

// transformers models/phi3/modeling_phi3.py, Phi3Attention.forward: queries, keys and values are
// slices of one GEMM, which it holds until it returns; a rotated slice of each head is joined
// with what is left of it, be that nothing.
ValueList attention_of(BlockBuilder& b, const LlamaLike& d, ValueId x) {
  const std::int64_t q_width = d.heads * d.head_dim, kv_width = d.kv_heads * d.head_dim;
  const std::int64_t rotated = d.rotary_dim > 0 ? d.rotary_dim : d.head_dim;
  const ValueId qkv = b.linear("self_attn.qkv_proj", x);
  const ValueList parts = b.slice("self_attn.qkv", qkv, {q_width, kv_width, kv_width});
  const ValueId q = b.heads("self_attn.q", parts[0]);
  const ValueId k = b.heads("self_attn.k", parts[1]);
  const ValueId v = b.heads("self_attn.v", parts[2]);
  const auto parts_of = [&](const char* name, ValueId all, std::int64_t heads) {
    return b.slice(name, all, {heads * rotated, heads * (d.head_dim - rotated)}, heads);
  };
  const ValueList q_parts = parts_of("self_attn.q.parts", q, d.heads);
  const ValueList k_parts = parts_of("self_attn.k.parts", k, d.kv_heads);
  const ValueId query =
      b.concatenate("self_attn.q.joined", b.rotary("self_attn.q", q_parts[0]), q_parts[1]);
  const ValueId key =
      b.concatenate("self_attn.k.joined", b.rotary("self_attn.k", k_parts[0]), k_parts[1]);
  const ValueList attention = b.attention("self_attn", query, key, v, EagerSoftmax::fp32);
  const ValueId o = b.linear("self_attn.o_proj", attention[0]);
  b.leave("self_attn", {query, key, qkv, x});
  return {o, attention[1]};
}

// Phi3MLP.forward: one GEMM of both, in halves.
ValueId mlp_of(BlockBuilder& b, const LlamaLike& d, ValueId y) {
  const ValueId both = b.linear("mlp.gate_up_proj", y);
  const ValueList halves = b.split("mlp.gate_up", both, {d.ffn, d.ffn});
  const ValueId activated = b.activation("mlp.act", halves[0], Activation::silu);
  const ValueId product = b.multiply("mlp.product", halves[1], activated);
  const ValueId down = b.linear("mlp.down_proj", product);
  b.leave("mlp", {y, both, product});
  return down;
}

// Phi3DecoderLayer.forward.
Block block_of(const ModelSpec& model, const LlamaLike& d) {
  BlockBuilder b(model.parameters, d.hidden);
  const ValueId x = b.norm("input_layernorm", kBlockInput);
  const ValueList attention = attention_of(b, d, x);
  const ValueId attended = b.dropout("resid_attn_dropout", attention[0], d.residual_dropout);
  const ValueId middle = b.add("self_attn", kBlockInput, attended);
  b.release({attention[0]});
  const ValueId y = b.norm("post_attention_layernorm", middle);
  const ValueId down = mlp_of(b, d, y);
  b.add("mlp", middle, b.dropout("resid_mlp_dropout", down, d.residual_dropout));
  b.release({down, attention[1], kBlockInput});
  if (d.window > 0) b.slide();
  return b.take();
}

void build(const Config& config, Head head, ModelSpec& model) {
  LlamaLike phi =
      read_llama_like(config, {.vocab = 32064, .hidden = 3072, .ffn = 8192, .positions = 4096});
  phi.window = config.natural("sliding_window", 0);
  phi.residual_dropout = config.probability("resid_pdrop", 0);
  const double rotated = rotated_fraction(config, "partial_rotary_factor", 1);
  phi.rotary_dim = static_cast<std::int64_t>(static_cast<double>(phi.head_dim) * rotated);
  Table table;
  table.inside(head == Head::base ? "" : "model", [&] {
    table.embedding("embed_tokens", phi.vocab, phi.hidden);
    table.repeat("layers", phi.layers, [&] { add_block(table, phi); });
    table.rms_norm("norm", phi.hidden);
  });
  if (head == Head::language_model) table.head("lm_head", phi.hidden, phi.vocab, phi.tied);
  add_classifier(table, config, head, phi.hidden, "score");
  model.parameters = table.take();
  model.max_positions = phi.positions;
  if (phi.rotary_dim < 2 || phi.rotary_dim % 2 != 0)
    model.no_decoder = "rotation of " + std::to_string(phi.rotary_dim) + " of a head's " +
                       std::to_string(phi.head_dim) + " elements (partial_rotary_factor)";
  else
    set_llama_decoder(model, head, phi, block_of);
}
}  // namespace

Family phi3() {
  return {.model_type = "phi3",
          .architectures = decoder_classes("Phi3"),
          .lora_targets = {},
          .build = build,
          .numerics = phi3_numerics};
}

}  // namespace plimsoll::models::families
