#include "models/table/block_builder.h"
#include "models/table/numerics.h"
#include "models/table/table.h"

namespace plimsoll::models::families {

namespace {
struct Dimensions {
  std::int64_t hidden, heads, ffn, embedding, vocab, positions, layers;
  bool bias, affine, tied;  // of linears; norms with parameters
};

void add_norm(Table& table, const char* name, const Dimensions& d) {
  if (d.affine) table.layer_norm(name, d.hidden);
}

void add_block(Table& table, const Dimensions& d) {
  table.inside("self_attn", [&] {
    for (const char* name : {"k_proj", "v_proj", "q_proj", "out_proj"})
      table.linear(name, d.hidden, d.hidden, d.bias);
  });
  add_norm(table, "self_attn_layer_norm", d);
  table.linear("fc1", d.hidden, d.ffn, d.bias);
  table.linear("fc2", d.ffn, d.hidden, d.bias);
  add_norm(table, "final_layer_norm", d);
}

// OPT-350m: embeddings narrower than the model, norms after each sublayer and none at the end.
void add_parameters(ModelSpec& model, const Config& config, Head head, const Dimensions& d) {
  const bool final_norm =
      config.flag("do_layer_norm_before", true) && !config.flag("_remove_final_layer_norm", false);
  Table table;
  table.inside(head == Head::base ? "decoder" : "model.decoder", [&] {
    table.embedding("embed_tokens", d.vocab, d.embedding);
    table.embedding("embed_positions", checked_add(d.positions, 2), d.hidden);  // two for padding
    if (d.embedding != d.hidden) {
      table.linear("project_out", d.hidden, d.embedding);
      table.linear("project_in", d.embedding, d.hidden);
    }
    if (final_norm) add_norm(table, "final_layer_norm", d);
    table.repeat("layers", d.layers, [&] { add_block(table, d); });
  });
  if (head == Head::language_model) table.head("lm_head", d.embedding, d.vocab, d.tied);
  add_classifier(table, config, head, d.embedding);
  model.parameters = table.take();
  model.max_positions = d.positions;
}

// What keeps the step program from describing this config; "" for nothing.
std::string difference(const Config& config, Head head, const ModelSpec& model,
                       const Dimensions& d) {
  if (!has_step(head)) return "architecture " + model.architecture;
  const std::string activation = config.text("activation_function", "relu");
  if (!activation_named(activation)) return "activation_function '" + activation + "'";
  // OPT-350m has both, the other models none.
  const bool before = config.flag("do_layer_norm_before", true);
  if (before != (d.embedding == d.hidden))
    return before ? "word_embed_proj_dim that is not hidden_size"
                  : "do_layer_norm_before false of opt";
  if (config.flag("_remove_final_layer_norm", false)) return "_remove_final_layer_norm of opt";
  if (!d.affine) return "layer_norm_elementwise_affine false of opt";
  return config.probability("layerdrop", 0) > 0 ? "layerdrop of opt" : "";
}

void set_decoder(ModelSpec& model, const Config& config, const Dimensions& d) {
  const Activation activation = *activation_named(config.text("activation_function", "relu"));
  model.decoder = Decoder{.hidden = d.hidden,
                          .layers = d.layers,
                          .heads = d.heads,
                          .kv_heads = d.heads,
                          .head_dim = d.hidden / d.heads,
                          .ffn = d.ffn,
                          .vocab = d.vocab,
                          .embedding_width = d.embedding != d.hidden ? d.embedding : 0,
                          .norm = NormKind::layer_norm,
                          .position = PositionKind::counted,
                          .mlp = mlp_of(activation),
                          .qkv_bias = d.bias,
                          .out_bias = d.bias,
                          .mlp_bias = d.bias,
                          .tied_head = d.tied,
                          .masks_first = true,
                          .python_gelu = activation == Activation::gelu_python,
                          .attention_dropout = config.probability("attention_dropout", 0),
                          .residual_dropout = config.probability("dropout", 0.1)};
}

// transformers models/opt/modeling_opt.py, OPTDecoderLayer.forward, which runs the MLP itself: each
// result goes as its name is bound anew. self_attn holds queries, keys, values and its input.
Block block_of(const ModelSpec& model, const Config& config) {
  const Decoder& d = *model.decoder;
  BlockBuilder b(model.parameters, d.hidden);
  const bool before = d.embedding_width == 0;  // norms stand before what they feed
  const ValueId x = before ? b.norm("self_attn_layer_norm", kBlockInput) : kBlockInput;
  const ValueId q = b.scale("self_attn.q", b.linear("self_attn.q_proj", x));
  const ValueId k = b.linear("self_attn.k_proj", x);
  const ValueId v = b.linear("self_attn.v_proj", x);
  const ValueList attention = b.attention("self_attn", q, k, v, EagerSoftmax::fp32);
  const ValueId o = b.linear("self_attn.out_proj", attention[0]);
  b.leave("self_attn", before ? ValueList{q, k, v, x} : ValueList{q, k, v});
  const ValueId branch = b.dropout("self_attn.dropout", o, d.residual_dropout);
  ValueId middle = b.add("self_attn", kBlockInput, branch);
  if (!before) middle = b.norm("self_attn_layer_norm", middle);
  const ValueId y = before ? b.norm("final_layer_norm", middle) : middle;
  const ValueId up = b.linear("fc1", y);
  const ValueId activated = b.activation(
      "activation_fn", up, *activation_named(config.text("activation_function", "relu")));
  const ValueId down = b.linear("fc2", activated);
  const ValueId sum = b.add("fc2", middle, b.dropout("fc2.dropout", down, d.residual_dropout));
  if (before) {
    b.release({attention[1], kBlockInput});
  } else {
    b.norm("final_layer_norm", sum);
    b.leave("layer", {attention[1], middle, kBlockInput});
  }
  return b.take();
}

void build(const Config& config, Head head, ModelSpec& model) {
  const std::int64_t hidden = config.count("hidden_size", 768);
  const Dimensions d{.hidden = hidden,
                     .heads = config.count("num_attention_heads", 12),
                     .ffn = config.count("ffn_dim", 3072),
                     .embedding = config.optional_count("word_embed_proj_dim", hidden),
                     .vocab = config.count("vocab_size", 50272),
                     .positions = config.count("max_position_embeddings", 2048),
                     .layers = config.repeats("num_hidden_layers", 12),
                     .bias = config.flag("enable_bias", true),
                     .affine = config.flag("layer_norm_elementwise_affine", true),
                     .tied = config.flag("tie_word_embeddings", true)};
  config.check_divides("num_attention_heads", d.heads, "hidden_size", d.hidden);
  add_parameters(model, config, head, d);
  model.no_decoder = difference(config, head, model, d);
  if (!model.no_decoder.empty()) return;
  set_decoder(model, config, d);
  model.blocks = {std::make_shared<const Block>(block_of(model, config))};
}
}  // namespace

Family opt() {
  return {.model_type = "opt",
          .architectures = {{"OPTForCausalLM", Head::language_model},
                            {"OPTModel", Head::base},
                            {"OPTForSequenceClassification", Head::sequence_classification}},
          .lora_targets = {"q_proj", "v_proj"},
          .build = build,
          .numerics = opt_numerics};
}

}  // namespace plimsoll::models::families
