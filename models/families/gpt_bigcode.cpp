#include "models/table/block_builder.h"
#include "models/table/numerics.h"
#include "models/table/table.h"

namespace plimsoll::models::families {

namespace {
// GPT-2 with ordinary linears and one key/value head for all queries (multi_query).
struct Dimensions {
  std::int64_t hidden, heads, ffn, vocab, positions, layers;
  bool multi_query, tied;
  std::int64_t kv_width() const { return multi_query ? hidden / heads : hidden; }
};

void add_block(Table& table, const Dimensions& d) {
  const std::int64_t qkv = checked_add(d.hidden, checked_multiply(2, d.kv_width()));
  table.layer_norm("ln_1", d.hidden);
  table.linear("attn.c_attn", d.hidden, qkv, true);
  table.linear("attn.c_proj", d.hidden, d.hidden, true);
  table.layer_norm("ln_2", d.hidden);
  table.linear("mlp.c_fc", d.hidden, d.ffn, true);
  table.linear("mlp.c_proj", d.ffn, d.hidden, true);
}

constexpr const char* kActivation = "gelu_pytorch_tanh";  // configuration_gpt_bigcode.py

// What keeps the step program from describing this config; "" for nothing.
std::string difference(const Config& config, Head head, const ModelSpec& model) {
  if (head != Head::language_model) return "architecture " + model.architecture;
  const std::string activation = config.text("activation_function", kActivation);
  return activation_named(activation) ? "" : "activation_function '" + activation + "'";
}

void set_decoder(ModelSpec& model, const Config& config, const Dimensions& d,
                 Activation activation) {
  model.decoder = Decoder{.hidden = d.hidden,
                          .layers = d.layers,
                          .heads = d.heads,
                          .kv_heads = d.multi_query ? 1 : d.heads,
                          .head_dim = d.hidden / d.heads,
                          .ffn = d.ffn,
                          .vocab = d.vocab,
                          .low_loss_once = true,
                          .cached_once = checked_add(d.hidden, checked_multiply(2, d.kv_width())),
                          .norm = NormKind::layer_norm,
                          .position = PositionKind::learned,
                          .mlp = mlp_of(activation),
                          .qkv_bias = true,
                          .out_bias = true,
                          .mlp_bias = true,
                          .tied_head = d.tied,
                          .masks_first = true,
                          .causal_table = true,
                          .python_gelu = activation == Activation::gelu_python,
                          .embedding_dropout = config.probability("embd_pdrop", 0.1),
                          .attention_dropout = config.probability("attn_pdrop", 0.1),
                          .residual_dropout = config.probability("resid_pdrop", 0.1)};
}

// transformers models/gpt_bigcode/modeling_gpt_bigcode.py, GPTBigCodeBlock.forward. Frames hold
// what GPT-2's do (gpt2.cpp).
Block block_of(const ModelSpec& model, const Dimensions& sizes, Activation activation) {
  const Decoder& d = *model.decoder;
  BlockBuilder b(model.parameters, d.hidden);
  const ValueId x = b.norm("ln_1", kBlockInput);
  const ValueId qkv = b.linear("attn.c_attn", x);
  const ValueList parts =
      b.split("attn.qkv", qkv, {d.hidden, sizes.kv_width(), sizes.kv_width()}, !sizes.multi_query);
  const ValueList attention = b.attention("attn", parts[0], parts[1], parts[2], EagerSoftmax::fp32);
  const ValueId o = b.linear("attn.c_proj", attention[0]);
  const ValueId branch = b.dropout("attn.resid_dropout", o, d.residual_dropout);
  b.leave("attn", {qkv});
  const ValueId middle = b.add("attn", kBlockInput, branch);
  b.release({x});
  const ValueId y = b.norm("ln_2", middle);
  const ValueId up = b.linear("mlp.c_fc", y);
  const ValueId activated = b.activation("mlp.act", up, activation);
  const ValueId down = b.linear("mlp.c_proj", activated);
  const ValueId dropped = b.dropout("mlp.dropout", down, d.residual_dropout);
  b.add("mlp", middle, dropped);
  b.release({branch, y, attention[1], kBlockInput});
  return b.take();
}

void build(const Config& config, Head head, ModelSpec& model) {
  const Key width{"n_embd", "hidden_size"}, head_count{"n_head", "num_attention_heads"};
  const std::int64_t hidden = config.count(width, 768);
  const Dimensions d{
      .hidden = hidden,
      .heads = config.count(head_count, 12),
      .ffn = config.optional_count("n_inner", checked_multiply(4, hidden)),
      .vocab = config.count("vocab_size", 50257),
      .positions = config.count({"n_positions", "max_position_embeddings"}, 1024),
      .layers = config.repeats({"n_layer", "num_hidden_layers"}, 12),
      .multi_query = config.flag("multi_query", true),
      .tied = config.flag("tie_word_embeddings", true),
  };
  config.check_divides(head_count, d.heads, width, d.hidden);
  Table table;
  table.inside(head == Head::base ? "" : "transformer", [&] {
    table.embedding("wte", d.vocab, d.hidden);
    table.embedding("wpe", d.positions, d.hidden);
    table.repeat("h", d.layers, [&] { add_block(table, d); });
    table.layer_norm("ln_f", d.hidden);
  });
  if (head == Head::language_model) table.head("lm_head", d.hidden, d.vocab, d.tied);
  add_classifier(table, config, head, d.hidden);
  if (config.flag("add_cross_attention", false)) config.refuse("add_cross_attention", "false");
  model.parameters = table.take();
  model.max_positions = d.positions;
  model.no_decoder = difference(config, head, model);
  if (!model.no_decoder.empty()) return;
  const Activation activation = *activation_named(config.text("activation_function", kActivation));
  set_decoder(model, config, d, activation);
  model.blocks = {std::make_shared<const Block>(block_of(model, d, activation))};
}
}  // namespace

Family gpt_bigcode() {
  return {.model_type = "gpt_bigcode",
          .architectures = decoder_classes("GPTBigCode"),
          .lora_targets = {"c_attn"},
          .build = build,
          .numerics = gpt2_numerics};
}

}  // namespace plimsoll::models::families
