#include "models/table/block_builder.h"
#include "models/table/table.h"

namespace plimsoll::models::families {

namespace {
struct Dimensions {
  std::int64_t hidden, heads, ffn, vocab, layers;
  bool tied;
};

void add_parameters(ModelSpec& model, const Config& config, Head head, const Dimensions& d) {
  Table table;
  table.inside(head == Head::base ? "" : "transformer", [&] {
    table.embedding("word_embeddings", d.vocab, d.hidden);
    table.layer_norm("word_embeddings_layernorm", d.hidden);
    table.repeat("h", d.layers, [&] {
      table.layer_norm("input_layernorm", d.hidden);
      table.linear("self_attention.query_key_value", d.hidden, checked_multiply(3, d.hidden), true);
      table.linear("self_attention.dense", d.hidden, d.hidden, true);
      table.layer_norm("post_attention_layernorm", d.hidden);
      table.linear("mlp.dense_h_to_4h", d.hidden, d.ffn, true);
      table.linear("mlp.dense_4h_to_h", d.ffn, d.hidden, true);
    });
    table.layer_norm("ln_f", d.hidden);
  });
  if (head == Head::language_model) table.head("lm_head", d.hidden, d.vocab, d.tied);
  add_classifier(table, config, head, d.hidden);
  model.parameters = table.take();
}

// What keeps the step program from describing this config; "" for nothing.
std::string difference(const Config& config, Head head, const ModelSpec& model) {
  if (head != Head::language_model) return "architecture " + model.architecture;
  if (config.flag("apply_residual_connection_post_layernorm", false))
    return "apply_residual_connection_post_layernorm of bloom";
  const bool slices = config.optional_count("pretraining_tp", 1) > 1;
  return slices && config.flag("slow_but_exact", false) ? "slow_but_exact of bloom" : "";
}

void set_decoder(ModelSpec& model, const Config& config, const Dimensions& d) {
  model.decoder = Decoder{.hidden = d.hidden,
                          .layers = d.layers,
                          .heads = d.heads,
                          .kv_heads = d.heads,
                          .head_dim = d.hidden / d.heads,
                          .ffn = d.ffn,
                          .vocab = d.vocab,
                          .embedding_norm = true,
                          .norm = NormKind::layer_norm,
                          .position = PositionKind::alibi,
                          .mlp = MlpKind::gelu_tanh,
                          .fused_qkv = true,
                          .qkv_bias = true,
                          .out_bias = true,
                          .mlp_bias = true,
                          .tied_head = d.tied,
                          .eager_attention = true,
                          .attention_dropout = config.probability("attention_dropout", 0),
                          .residual_dropout = config.probability("hidden_dropout", 0)};
}

// transformers models/bloom/modeling_bloom.py, BloomBlock.forward. Attention and MLP add the
// residual themselves (dropout_add) and hold what they computed until they return; the first norm's
// result keeps its name until the second has returned, the model's `outputs` what a block returned.
Block block_of(const ModelSpec& model) {
  const Decoder& d = *model.decoder;
  BlockBuilder b(model.parameters, d.hidden);
  const ValueId x = b.norm("input_layernorm", kBlockInput);
  const ValueId qkv = b.linear("self_attention.query_key_value", x);
  const ValueList parts = b.slice("self_attention.qkv", qkv, {d.hidden, d.hidden, d.hidden});
  const ValueId q = b.reshape("self_attention.q", parts[0]);
  const ValueId k = b.reshape("self_attention.k", parts[1]);
  const ValueId v = b.reshape("self_attention.v", parts[2]);
  const ValueList attention = b.alibi_attention("self_attention", q, k, v);
  const ValueId o = b.linear("self_attention.dense", attention[0]);
  const ValueId attended = b.dropout("self_attention.dropout", o, d.residual_dropout);
  const ValueId middle = b.add("self_attention", kBlockInput, attended);
  b.release({q, k, v, attention[2], attention[3], attention[0], o, attended});
  b.leave("self_attention", {qkv});
  const ValueId y = b.norm("post_attention_layernorm", middle);
  b.leave("post_attention_layernorm", {x});
  const ValueId up = b.linear("mlp.dense_h_to_4h", y);
  const ValueId activated = b.activation("mlp.gelu_impl", up, Activation::gelu_function);
  const ValueId down = b.linear("mlp.dense_4h_to_h", activated);
  const ValueId branch = b.dropout("mlp.dropout", down, d.residual_dropout);
  b.add("mlp", middle, branch);
  b.release({activated, down, branch, y, middle, kBlockInput});
  b.returned({attention[1]});
  return b.take();
}

// ALiBi: no position table, any length.
void build(const Config& config, Head head, ModelSpec& model) {
  const Key width{"hidden_size", "n_embed"}, head_count{"n_head", "num_attention_heads"};
  const std::int64_t hidden = config.count(width, 64);
  const Dimensions d{.hidden = hidden,
                     .heads = config.count(head_count, 8),
                     .ffn = checked_multiply(4, hidden),
                     .vocab = config.count("vocab_size", 250880),
                     .layers = config.repeats({"n_layer", "num_hidden_layers"}, 2),
                     .tied = config.flag("tie_word_embeddings", true)};
  config.check_divides(head_count, d.heads, width, hidden);
  add_parameters(model, config, head, d);
  model.no_decoder = difference(config, head, model);
  if (!model.no_decoder.empty()) return;
  set_decoder(model, config, d);
  model.blocks = {std::make_shared<const Block>(block_of(model))};
}
}  // namespace

Family bloom() {
  return {.model_type = "bloom",
          .architectures = decoder_classes("Bloom"),
          .lora_targets = {"query_key_value"},
          .build = build};
}

}  // namespace plimsoll::models::families
