#include "models/table/block_builder.h"
#include "models/table/numerics.h"
#include "models/table/table.h"

namespace plimsoll::models::families {

namespace {
struct Dimensions {
  std::int64_t hidden, heads, ffn, vocab, layers;
  bool bias, tied, parallel;
};

// What keeps the step program from describing this config; "" for nothing.
std::string difference(const Config& config, Head head, const ModelSpec& model,
                       const Dimensions& d) {
  if (!has_step(head)) return "architecture " + model.architecture;
  const std::string activation = config.text("hidden_act", "gelu");
  if (!activation_named(activation)) return "hidden_act '" + activation + "'";
  const std::int64_t head_dim = d.hidden / d.heads;
  const auto rotated = static_cast<std::int64_t>(static_cast<double>(head_dim) *
                                                 rotated_fraction(config, "rotary_pct", 0.25));
  if (rotated < 2 || rotated % 2 != 0 || rotated == head_dim)
    return "rotation of " + std::to_string(rotated) + " of a head's " + std::to_string(head_dim) +
           " elements (rotary_pct)";
  return "";
}

void set_decoder(ModelSpec& model, const Config& config, const Dimensions& d) {
  const Activation activation = *activation_named(config.text("hidden_act", "gelu"));
  const std::int64_t head_dim = d.hidden / d.heads;
  const double dropout = config.probability("hidden_dropout", 0);
  model.decoder =
      Decoder{.hidden = d.hidden,
              .layers = d.layers,
              .heads = d.heads,
              .kv_heads = d.heads,
              .head_dim = head_dim,
              .rotary_dim = static_cast<std::int64_t>(static_cast<double>(head_dim) *
                                                      rotated_fraction(config, "rotary_pct", 0.25)),
              .ffn = d.ffn,
              .vocab = d.vocab,
              .norm = NormKind::layer_norm,
              .mlp = mlp_of(activation),
              .qkv_bias = d.bias,
              .out_bias = d.bias,
              .mlp_bias = true,
              .tied_head = d.tied,
              .python_gelu = activation == Activation::gelu_python,
              .embedding_dropout = dropout,
              .attention_dropout = config.probability("attention_dropout", 0),
              .residual_dropout = dropout};
}

// attention and mlp hold their input, an expression of the layer's, until they return.
ValueList attention_of(BlockBuilder& b, const Decoder& d, ValueId x) {
  const std::int64_t rotated = d.heads * d.rotary_dim;
  const ValueId qkv = b.linear("attention.query_key_value", x);
  const ValueList parts = b.split("attention.qkv", qkv, {d.hidden, d.hidden, d.hidden}, d.heads);
  const ValueList q = b.slice("attention.q", parts[0], {rotated, d.hidden - rotated}, d.heads);
  const ValueList k = b.slice("attention.k", parts[1], {rotated, d.hidden - rotated}, d.heads);
  const ValueList both = b.rotary("attention", q[0], k[0]);
  const ValueId query = b.concatenate("attention.q", both[0], q[1]);
  const ValueId key = b.concatenate("attention.k", both[1], k[1]);
  const ValueList attention = b.attention("attention", query, key, parts[2], EagerSoftmax::fp32);
  const ValueId o = b.linear("attention.dense", attention[0]);
  b.leave("attention", {query, key, qkv, x});
  return {b.dropout("post_attention_dropout", o, d.residual_dropout), attention[1]};
}

ValueId mlp_of(BlockBuilder& b, const Decoder& d, Activation activation, ValueId y) {
  const ValueId up = b.linear("mlp.dense_h_to_4h", y);
  const ValueId activated = b.activation("mlp.act", up, activation);
  const ValueId down = b.linear("mlp.dense_4h_to_h", activated);
  b.leave("mlp", {y, activated});
  return b.dropout("post_mlp_dropout", down, d.residual_dropout);
}

// transformers models/gpt_neox/modeling_gpt_neox.py, GPTNeoXLayer.forward.
Block block_of(const ModelSpec& model, const Config& config, bool parallel) {
  const Decoder& d = *model.decoder;
  const Activation activation = *activation_named(config.text("hidden_act", "gelu"));
  BlockBuilder b(model.parameters, d.hidden);
  const ValueId x = b.norm("input_layernorm", kBlockInput);
  const ValueList attention = attention_of(b, d, x);
  const ValueId middle = parallel ? kBlockInput : b.add("attention", kBlockInput, attention[0]);
  const ValueId y = b.norm("post_attention_layernorm", middle);
  const ValueId down = mlp_of(b, d, activation, y);
  b.add("mlp", middle, parallel ? b.add("branches", down, attention[0]) : down);
  // In the parallel form attention's result keeps its name until the layer returns.
  if (parallel)
    b.release({down, attention[0], attention[1], kBlockInput});
  else
    b.release({down, attention[1], kBlockInput});
  return b.take();
}

void build(const Config& config, Head head, ModelSpec& model) {
  const Dimensions d{.hidden = config.count("hidden_size", 6144),
                     .heads = config.count("num_attention_heads", 64),
                     .ffn = config.count("intermediate_size", 24576),
                     .vocab = config.count("vocab_size", 50432),
                     .layers = config.repeats("num_hidden_layers", 44),
                     .bias = config.flag("attention_bias", true),
                     .tied = config.flag("tie_word_embeddings", false),
                     .parallel = config.flag("use_parallel_residual", true)};
  config.check_divides("num_attention_heads", d.heads, "hidden_size", d.hidden);
  Table table;
  table.inside(head == Head::base ? "" : "gpt_neox", [&] {
    table.embedding("embed_in", d.vocab, d.hidden);
    table.repeat("layers", d.layers, [&] {
      table.layer_norm("input_layernorm", d.hidden);
      table.layer_norm("post_attention_layernorm", d.hidden);
      table.linear("attention.query_key_value", d.hidden, checked_multiply(3, d.hidden), d.bias);
      table.linear("attention.dense", d.hidden, d.hidden, d.bias);
      table.linear("mlp.dense_h_to_4h", d.hidden, d.ffn, true);
      table.linear("mlp.dense_4h_to_h", d.ffn, d.hidden, true);
    });
    table.layer_norm("final_layer_norm", d.hidden);
  });
  if (head == Head::language_model) table.head("embed_out", d.hidden, d.vocab, d.tied);
  add_classifier(table, config, head, d.hidden);
  model.parameters = table.take();
  model.max_positions = config.count("max_position_embeddings", 2048);
  model.no_decoder = difference(config, head, model, d);
  if (!model.no_decoder.empty()) return;
  set_decoder(model, config, d);
  model.blocks = {std::make_shared<const Block>(block_of(model, config, d.parallel))};
}
}  // namespace

Family gpt_neox() {
  return {.model_type = "gpt_neox",
          .architectures = decoder_classes("GPTNeoX"),
          .lora_targets = {"query_key_value"},
          .build = build,
          .numerics = gpt_neox_numerics};
}

}  // namespace plimsoll::models::families
