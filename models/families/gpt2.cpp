#include "models/table/block_builder.h"
#include "models/table/numerics.h"
#include "models/table/table.h"

namespace plimsoll::models::families {

namespace {
struct Dimensions {
  std::int64_t hidden, layers, heads, ffn, vocab, positions;
  bool cross_attention, tied;
};

void add_block(Table& table, const Dimensions& d) {
  table.layer_norm("ln_1", d.hidden);
  table.conv1d("attn.c_attn", d.hidden, checked_multiply(3, d.hidden));
  table.conv1d("attn.c_proj", d.hidden, d.hidden);
  table.layer_norm("ln_2", d.hidden);
  if (d.cross_attention) {
    table.conv1d("crossattention.c_attn", d.hidden, checked_multiply(2, d.hidden));
    table.conv1d("crossattention.q_attn", d.hidden, d.hidden);
    table.conv1d("crossattention.c_proj", d.hidden, d.hidden);
    table.layer_norm("ln_cross_attn", d.hidden);
  }
  table.conv1d("mlp.c_fc", d.hidden, d.ffn);
  table.conv1d("mlp.c_proj", d.ffn, d.hidden);
}

// What keeps the step program of GPT-2 from describing this config; "" for nothing.
std::string difference(const Config& config, Head head, const ModelSpec& model) {
  if (!has_step(head)) return "architecture " + model.architecture;
  for (const char* option :
       {"add_cross_attention", "reorder_and_upcast_attn", "scale_attn_by_inverse_layer_idx"})
    if (config.flag(option, false)) return std::string(option) + " of gpt2";
  const std::string activation = config.text("activation_function", "gelu_new");
  return activation_named(activation) ? "" : "activation_function '" + activation + "'";
}

Activation activation_of(const Config& config) {
  return *activation_named(config.text("activation_function", "gelu_new"));
}

void set_decoder(ModelSpec& model, const Config& config, const Dimensions& d) {
  const Activation activation = activation_of(config);
  model.decoder = Decoder{.hidden = d.hidden,
                          .layers = d.layers,
                          .heads = d.heads,
                          .kv_heads = d.heads,
                          .head_dim = d.hidden / d.heads,
                          .ffn = d.ffn,
                          .vocab = d.vocab,
                          .norm = NormKind::layer_norm,
                          .position = PositionKind::learned,
                          .mlp = mlp_of(activation),
                          .fused_qkv = true,
                          .qkv_bias = true,
                          .out_bias = true,
                          .mlp_bias = true,
                          .tied_head = d.tied,
                          .python_gelu = activation == Activation::gelu_python,
                          .embedding_dropout = config.probability("embd_pdrop", 0.1),
                          .attention_dropout = config.probability("attn_pdrop", 0.1),
                          .residual_dropout = config.probability("resid_pdrop", 0.1)};
}

// transformers models/gpt2/modeling_gpt2.py, GPT2Block.forward. attn holds what c_attn made until
// it returns; the block holds each norm's result until its name is bound anew, and what attn
// returned until it returns itself.
Block block_of(const ModelSpec& model, const Config& config) {
  const Decoder& d = *model.decoder;
  BlockBuilder b(model.parameters, d.hidden);
  const ValueId x = b.norm("ln_1", kBlockInput);
  const ValueId qkv = b.linear("attn.c_attn", x);
  const ValueList parts = b.split("attn.qkv", qkv, {d.hidden, d.hidden, d.hidden});
  const ValueList attention =
      b.attention("attn", parts[0], parts[1], parts[2], EagerSoftmax::as_computed);
  const ValueId o = b.linear("attn.c_proj", attention[0]);
  const ValueId branch = b.dropout("attn.resid_dropout", o, d.residual_dropout);
  b.leave("attn", {qkv});
  const ValueId middle = b.add("attn", kBlockInput, branch);
  b.release({x});
  const ValueId y = b.norm("ln_2", middle);
  const ValueId up = b.linear("mlp.c_fc", y);
  const ValueId activated = b.activation("mlp.act", up, activation_of(config));
  const ValueId down = b.linear("mlp.c_proj", activated);
  const ValueId dropped = b.dropout("mlp.dropout", down, d.residual_dropout);
  b.add("mlp", middle, dropped);
  b.release({branch, y, attention[1], kBlockInput});
  return b.take();
}

void build(const Config& config, Head head, ModelSpec& model) {
  const std::int64_t hidden = config.count({"n_embd", "hidden_size"}, 768);
  const Dimensions d{
      .hidden = hidden,
      .layers = config.repeats({"n_layer", "num_hidden_layers"}, 12),
      .heads = config.count({"n_head", "num_attention_heads"}, 12),
      .ffn = config.optional_count("n_inner", checked_multiply(4, hidden)),
      .vocab = config.count("vocab_size", 50257),
      .positions = config.count({"n_positions", "max_position_embeddings"}, 1024),
      .cross_attention = config.flag("add_cross_attention", false),
      .tied = config.flag("tie_word_embeddings", true),
  };
  config.check_divides({"n_head", "num_attention_heads"}, d.heads, {"n_embd", "hidden_size"},
                       d.hidden);
  Table table;
  table.inside(head == Head::base ? "" : "transformer", [&] {
    table.embedding("wte", d.vocab, d.hidden);
    table.embedding("wpe", d.positions, d.hidden);
    table.repeat("h", d.layers, [&] { add_block(table, d); });
    table.layer_norm("ln_f", d.hidden);
  });
  if (head == Head::language_model) table.head("lm_head", d.hidden, d.vocab, d.tied);
  add_classifier(table, config, head, d.hidden);
  model.parameters = table.take();
  model.max_positions = d.positions;
  model.no_decoder = difference(config, head, model);
  if (!model.no_decoder.empty()) return;
  set_decoder(model, config, d);
  model.blocks = {std::make_shared<const Block>(block_of(model, config))};
}
}  // namespace

Family gpt2() {
  return {.model_type = "gpt2",
          .architectures = {{"GPT2LMHeadModel", Head::language_model},
                            {"GPT2Model", Head::base},
                            {"GPT2ForSequenceClassification", Head::sequence_classification},
                            {"GPT2ForTokenClassification", Head::token_classification}},
          .lora_targets = {"c_attn"},
          .build = build,
          .numerics = gpt2_numerics};
}

}  // namespace plimsoll::models::families
