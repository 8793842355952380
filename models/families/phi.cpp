#include "models/table/block_builder.h"
#include "models/table/llama_like.h"
#include "models/table/numerics.h"

namespace plimsoll::models::families {

namespace {
// One norm for attention and MLP in parallel, biases everywhere, also in the head.
void add_block(Table& table, const Config& config, const LlamaLike& d) {
  const std::int64_t q_width = checked_multiply(d.heads, d.head_dim);
  const std::int64_t kv_width = checked_multiply(d.kv_heads, d.head_dim);
  table.inside("self_attn", [&] {
    table.linear("q_proj", d.hidden, q_width, true);
    table.linear("k_proj", d.hidden, kv_width, true);
    table.linear("v_proj", d.hidden, kv_width, true);
    table.linear("dense", q_width, d.hidden, true);
    if (config.flag("qk_layernorm", false)) {
      table.layer_norm("q_layernorm", d.hidden / d.heads);
      table.layer_norm("k_layernorm", d.hidden / d.heads);
    }
  });
  table.linear("mlp.fc1", d.hidden, d.ffn, true);
  table.linear("mlp.fc2", d.ffn, d.hidden, true);
  table.layer_norm("input_layernorm", d.hidden);
}

// What keeps the step program from describing this config; "" for nothing.
std::string difference(const Config& config, Head head, const ModelSpec& model,
                       const LlamaLike& d) {
  if (!has_step(head)) return "architecture " + model.architecture;
  if (!activation_named(d.activation)) return "hidden_act '" + d.activation + "'";
  if (config.flag("qk_layernorm", false)) return "qk_layernorm of phi";
  if (config.probability("embd_pdrop", 0) > 0) return "embd_pdrop of phi";
  if (d.tied) return "tie_word_embeddings of phi, whose head has a bias";
  if (d.rotary_dim < 2 || d.rotary_dim % 2 != 0 || d.rotary_dim == d.head_dim)
    return "rotation of " + std::to_string(d.rotary_dim) + " of a head's " +
           std::to_string(d.head_dim) + " elements (partial_rotary_factor)";
  return "";
}

void set_decoder(ModelSpec& model, const LlamaLike& d) {
  const Activation activation = *activation_named(d.activation);
  model.decoder = Decoder{.hidden = d.hidden,
                          .layers = d.layers,
                          .heads = d.heads,
                          .kv_heads = d.kv_heads,
                          .head_dim = d.head_dim,
                          .rotary_dim = d.rotary_dim,
                          .ffn = d.ffn,
                          .vocab = d.vocab,
                          .norm = NormKind::layer_norm,
                          .mlp = mlp_of(activation),
                          .qkv_bias = true,
                          .out_bias = true,
                          .mlp_bias = true,
                          .tied_head = d.tied,
                          .python_gelu = activation == Activation::gelu_python,
                          .attention_dropout = d.attention_dropout,
                          .residual_dropout = d.residual_dropout};
}

// transformers models/phi/modeling_phi.py, PhiDecoderLayer.forward. self_attn holds what it
// projected and what it rotated until it returns, the layer its norm's result.
Block block_of(const ModelSpec& model, const LlamaLike& d) {
  BlockBuilder b(model.parameters, d.hidden);
  const std::int64_t rest = d.head_dim - d.rotary_dim;
  const auto parts_of = [&](const char* name, ValueId all, std::int64_t heads) {
    return b.slice(name, all, {heads * d.rotary_dim, heads * rest}, heads);
  };
  const ValueId x = b.norm("input_layernorm", kBlockInput);
  const ValueId q = b.linear("self_attn.q_proj", x);
  const ValueId k = b.linear("self_attn.k_proj", x);
  const ValueId v = b.linear("self_attn.v_proj", x);
  const ValueList q_parts = parts_of("self_attn.q", q, d.heads);
  const ValueList k_parts = parts_of("self_attn.k", k, d.kv_heads);
  const ValueList rotated = b.rotary("self_attn", q_parts[0], k_parts[0]);
  const ValueId query = b.concatenate("self_attn.q.joined", rotated[0], q_parts[1]);
  const ValueId key = b.concatenate("self_attn.k.joined", rotated[1], k_parts[1]);
  const ValueList attention = b.attention("self_attn", query, key, v, EagerSoftmax::fp32);
  const ValueId o = b.linear("self_attn.dense", attention[0]);
  b.leave("self_attn", {q, k, v, rotated[0], rotated[1], query, key});
  const ValueId branch = b.dropout("self_attn.resid_dropout", o, d.residual_dropout);
  const ValueId up = b.linear("mlp.fc1", x);
  const ValueId activated = b.activation("mlp.activation_fn", up, *activation_named(d.activation));
  const ValueId down = b.linear("mlp.fc2", activated);
  b.leave("mlp", {activated});
  const ValueId other = b.dropout("mlp.resid_dropout", down, d.residual_dropout);
  b.add("mlp", kBlockInput, b.add("branches", branch, other));
  b.release({x, branch, other, attention[1], kBlockInput});
  return b.take();
}

void build(const Config& config, Head head, ModelSpec& model) {
  LlamaLike phi = read_llama_like(
      config,
      {.vocab = 51200, .hidden = 2048, .ffn = 8192, .layers = 24, .activation = "gelu_new"});
  const double rotated = rotated_fraction(config, "partial_rotary_factor", 0.5);
  phi.rotary_dim = static_cast<std::int64_t>(static_cast<double>(phi.head_dim) * rotated);
  phi.residual_dropout = config.probability("resid_pdrop", 0);
  Table table;
  table.inside(head == Head::base ? "" : "model", [&] {
    table.embedding("embed_tokens", phi.vocab, phi.hidden);
    table.repeat("layers", phi.layers, [&] { add_block(table, config, phi); });
    table.layer_norm("final_layernorm", phi.hidden);
  });
  if (head == Head::language_model) table.head("lm_head", phi.hidden, phi.vocab, phi.tied, true);
  add_classifier(table, config, head, phi.hidden, "score");
  model.parameters = table.take();
  model.max_positions = phi.positions;
  model.no_decoder = difference(config, head, model, phi);
  if (!model.no_decoder.empty()) return;
  set_decoder(model, phi);
  model.blocks = {std::make_shared<const Block>(block_of(model, phi))};
}
}  // namespace

Family phi() {
  return {.model_type = "phi",
          .architectures = decoder_classes("Phi"),
          .lora_targets = {"q_proj", "v_proj", "fc1", "fc2"},
          .build = build,
          .numerics = phi_numerics};
}

}  // namespace plimsoll::models::families
