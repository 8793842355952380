#include "models/table/llama_like.h"

#include <algorithm>
#include <utility>

namespace plimsoll::models::families {

LlamaLike read_llama_like(const Config& config, LlamaLike defaults) {
  LlamaLike d = std::move(defaults);
  d.vocab = config.count("vocab_size", d.vocab);
  d.hidden = config.count("hidden_size", d.hidden);
  d.ffn = config.count("intermediate_size", d.ffn);
  d.layers = config.repeats("num_hidden_layers", d.layers);
  d.heads = config.count("num_attention_heads", d.heads);
  // Absent: the family's default; null: as many as query heads.
  const bool as_heads = d.kv_heads == 0 || config.mentions("num_key_value_heads");
  d.kv_heads = config.optional_count("num_key_value_heads", as_heads ? d.heads : d.kv_heads);
  d.positions = config.count("max_position_embeddings", d.positions);
  d.activation = config.text("hidden_act", d.activation);
  d.tied = config.flag("tie_word_embeddings", d.tied);
  d.attention_dropout = config.probability("attention_dropout", d.attention_dropout);
  d.head_dim =
      d.head_dim > 0 ? config.count("head_dim", d.head_dim) : config.optional_count("head_dim", 0);
  if (d.head_dim == 0) {
    config.check_divides("num_attention_heads", d.heads, "hidden_size", d.hidden);
    d.head_dim = d.hidden / d.heads;
  }
  config.check_divides("num_key_value_heads", d.kv_heads, "num_attention_heads", d.heads);
  if (d.head_dim % 2 != 0)  // rotary positions turn pairs
    fail(ErrorKind::bad_input, config.source() + ": heads of " + std::to_string(d.head_dim) +
                                   " elements: rotary positions need an even number (head_dim)");
  // torch.nn.Embedding refuses a padding_idx outside of the table.
  if (config.has("pad_token_id") && config.real("pad_token_id", 0) >= static_cast<double>(d.vocab))
    config.refuse("pad_token_id", "a token below vocab_size " + std::to_string(d.vocab));
  return d;
}

void add_llama_attention(Table& table, const LlamaLike& d) {
  const std::int64_t q_width = checked_multiply(d.heads, d.head_dim);
  const std::int64_t kv_width = checked_multiply(d.kv_heads, d.head_dim);
  table.inside("self_attn", [&] {
    table.linear("q_proj", d.hidden, q_width, d.qkv_bias);
    table.linear("k_proj", d.hidden, kv_width, d.qkv_bias);
    table.linear("v_proj", d.hidden, kv_width, d.qkv_bias);
    table.linear("o_proj", q_width, d.hidden, d.out_bias);
    if (d.qk_norm) {
      table.rms_norm("q_norm", d.head_dim);
      table.rms_norm("k_norm", d.head_dim);
    }
  });
}

void add_gated_mlp(Table& table, std::int64_t hidden, std::int64_t ffn, bool bias,
                   ModuleKind kind) {
  table.linear("gate_proj", hidden, ffn, bias, kind);
  table.linear("up_proj", hidden, ffn, bias, kind);
  table.linear("down_proj", ffn, hidden, bias, kind);
}

void add_llama(ModelSpec& model, const Config& config, Head head, const LlamaLike& d) {
  Table table;
  table.inside(head == Head::base ? "" : "model", [&] {
    table.embedding("embed_tokens", d.vocab, d.hidden);
    table.repeat("layers", d.layers, [&] {
      add_llama_attention(table, d);
      table.inside("mlp", [&] { add_gated_mlp(table, d.hidden, d.ffn, d.mlp_bias); });
      table.rms_norm("input_layernorm", d.hidden);
      table.rms_norm("post_attention_layernorm", d.hidden);
      if (d.sandwich_norms) {
        table.rms_norm("pre_feedforward_layernorm", d.hidden);
        table.rms_norm("post_feedforward_layernorm", d.hidden);
      }
    });
    table.rms_norm("norm", d.hidden);
  });
  if (head == Head::language_model) table.head("lm_head", d.hidden, d.vocab, d.tied);
  add_classifier(table, config, head, d.hidden, "score");
  model.parameters = table.take();
  model.max_positions = d.positions;
}

ValueId gated_mlp(BlockBuilder& b, ValueId y, Activation activation, const char* scattered) {
  const ValueId gate = b.linear("mlp.gate_proj", y);
  const ValueId activated = b.activation("mlp.act", gate, activation);
  const ValueId up = b.linear("mlp.up_proj", y);
  const ValueId product = b.multiply("mlp.product", activated, up);
  ValueId down = b.linear("mlp.down_proj", product);
  if (scattered != nullptr) down = b.scatter_sequence(scattered, down);
  b.leave("mlp", {y, product});
  return down;
}

// transformers models/llama/modeling_llama.py, LlamaAttention.forward holds queries, keys, values
// and its input until it returns.
ValueList llama_attention(BlockBuilder& b, const LlamaLike& d, ValueId x) {
  ValueId q = b.linear("self_attn.q_proj", x);
  if (d.qk_norm) q = b.norm("self_attn.q_norm", q);
  ValueId k = b.linear("self_attn.k_proj", x);
  if (d.qk_norm) k = b.norm("self_attn.k_norm", k);
  const ValueId v = b.linear("self_attn.v_proj", x);
  const ValueList rotated = b.rotary("self_attn", q, k);
  const ValueList attention =
      b.attention("self_attn", rotated[0], rotated[1], v, EagerSoftmax::fp32);
  const ValueId o = b.linear("self_attn.o_proj", attention[0]);
  b.leave("self_attn", {rotated[0], rotated[1], v, x});
  return {o, attention[1]};
}

// LlamaDecoderLayer.forward holds its own input, and what attention returned beside its result.
Block llama_block(BlockBuilder b, const LlamaLike& d,
                  const std::function<ValueId(BlockBuilder&, ValueId)>& mlp) {
  const ValueId x = b.norm("input_layernorm", kBlockInput);
  const ValueList attention = llama_attention(b, d, x);
  const ValueId middle = b.add("self_attn", kBlockInput, attention[0]);
  const ValueId y = b.norm("post_attention_layernorm", middle);
  b.add("mlp", middle, mlp(b, y));
  b.release({attention[1], kBlockInput});
  if (d.window > 0) b.slide();
  return b.take();
}

Block llama_block(const ModelSpec& model, const LlamaLike& d) {
  return llama_block(BlockBuilder(model.parameters, d.hidden), d,
                     [](BlockBuilder& b, ValueId y) { return gated_mlp(b, y); });
}

void set_llama_facts(ModelSpec& model, const LlamaLike& d) {
  model.decoder = Decoder{.hidden = d.hidden,
                          .layers = d.layers,
                          .heads = d.heads,
                          .kv_heads = d.kv_heads,
                          .head_dim = d.head_dim,
                          .rotary_dim = d.rotary_dim,
                          .ffn = d.ffn,
                          .vocab = d.vocab,
                          .window = d.window,
                          .qkv_bias = d.qkv_bias,
                          .out_bias = d.out_bias,
                          .mlp_bias = d.mlp_bias,
                          .qk_norm = d.qk_norm,
                          .tied_head = d.tied,
                          .attention_dropout = d.attention_dropout,
                          .residual_dropout = d.residual_dropout};
}

void set_llama_decoder(ModelSpec& model, Head head, const LlamaLike& d,
                       Block (*block)(const ModelSpec&, const LlamaLike&)) {
  if (!has_step(head)) {
    model.no_decoder = "architecture " + model.architecture;
    return;
  }
  if (d.activation != "silu" && d.activation != "swish") {
    model.no_decoder = "hidden_act '" + d.activation + "' in a gated MLP";
    return;
  }
  set_llama_facts(model, d);
  model.blocks = {std::make_shared<const Block>(block(model, d))};
}

std::vector<bool> sliding_layers(const Config& config, std::int64_t layers,
                                 const std::function<bool(std::int64_t)>& otherwise) {
  const std::vector<std::string> types = config.texts("layer_types", kMostRepeats);
  if (!types.empty() && std::cmp_not_equal(types.size(), layers))
    config.refuse("layer_types", "one for each of the " + std::to_string(layers) + " layers");
  std::vector<bool> sliding;
  for (const std::string& type : types)
    if (type != "sliding_attention" && type != "full_attention")
      config.refuse("layer_types", "sliding_attention or full_attention for each layer");
  for (std::int64_t i = 0; i < layers; ++i)
    sliding.push_back(types.empty() ? otherwise(i)
                                    : types[static_cast<std::size_t>(i)] == "sliding_attention");
  return sliding;
}

void set_qwen_decoder(ModelSpec& model, const Config& config, Head head, LlamaLike d) {
  const bool used = config.flag("use_sliding_window", false);
  const std::int64_t window = used ? config.natural("sliding_window", 4096) : 0;
  const std::int64_t first = config.natural("max_window_layers", 28);
  const std::vector<bool> sliding =
      sliding_layers(config, d.layers, [&](std::int64_t i) { return i >= first; });
  const auto slide = static_cast<std::int64_t>(std::ranges::count(sliding, true));
  LlamaLike full = d;
  full.window = 0;
  d.window = slide > 0 ? window : 0;
  set_llama_decoder(model, head, d);
  if (!model.decoder || d.window == 0 || slide == d.layers) return;
  model.decoder->full_layers = d.layers - slide;
  const auto with = model.blocks.front();
  const auto without = std::make_shared<const Block>(llama_block(model, full));
  model.blocks.clear();
  for (const bool slides : sliding) model.blocks.push_back(slides ? with : without);
}

}  // namespace plimsoll::models::families
