#include "models/table/deepseek.h"

#include <algorithm>

#include "models/table/llama_like.h"

namespace plimsoll::models::families {

namespace {
DeepSeek read(const Config& config, DeepSeek d) {
  d.vocab = config.count("vocab_size", d.vocab);
  d.hidden = config.count("hidden_size", d.hidden);
  d.ffn = config.count("intermediate_size", d.ffn);
  d.expert_ffn = config.count("moe_intermediate_size", d.expert_ffn);
  d.layers = config.repeats("num_hidden_layers", d.layers);
  d.heads = config.count("num_attention_heads", d.heads);
  d.experts = config.repeats("n_routed_experts", d.experts);
  d.shared_experts = config.natural("n_shared_experts", d.shared_experts);
  d.active = active_experts(config, "num_experts_per_tok", d.active, d.experts);
  d.dense_layers = std::min(config.natural("first_k_dense_replace", d.dense_layers), d.layers);
  d.positions = config.count("max_position_embeddings", d.positions);
  d.mlp_bias = d.mlp_bias && config.flag("mlp_bias", false);
  // Transformers does not read this field: only 1 means the same to everybody.
  if (config.count("moe_layer_freq", 1) != 1) config.refuse("moe_layer_freq", "1");
  return d;
}

void add_attention(Table& table, const Config& config, const DeepSeek& d) {
  const std::int64_t nope = config.count("qk_nope_head_dim", 128);
  const std::int64_t rope = config.count("qk_rope_head_dim", 64);
  const std::int64_t value = config.count("v_head_dim", 128);
  const std::int64_t kv_rank = config.count("kv_lora_rank", 512);
  const std::int64_t q_rank = config.natural("q_lora_rank", 1536);  // null: one full q_proj
  const std::int64_t q_width = checked_multiply(d.heads, checked_add(nope, rope));
  const bool bias = config.flag("attention_bias", false);
  table.inside("self_attn", [&] {
    if (q_rank == 0) {
      table.linear("q_proj", d.hidden, q_width);
    } else {
      table.linear("q_a_proj", d.hidden, q_rank, bias);
      table.rms_norm("q_a_layernorm", q_rank);
      table.linear("q_b_proj", q_rank, q_width);
    }
    table.linear("kv_a_proj_with_mqa", d.hidden, checked_add(kv_rank, rope), bias);
    table.rms_norm("kv_a_layernorm", kv_rank);
    table.linear("kv_b_proj", kv_rank, checked_multiply(d.heads, checked_add(nope, value)));
    table.linear("o_proj", checked_multiply(d.heads, value), d.hidden, bias);
  });
}

void add_mixture(Table& table, const DeepSeek& d) {
  table.parameter("gate.weight", {d.experts, d.hidden}, ModuleKind::router);
  if (d.correction_bias) {
    ParameterRow& row =
        table.parameter("gate.e_score_correction_bias", {d.experts}, ModuleKind::router);
    row.no_gradient = true;
    row.dtype = DType::fp32;
  }
  table.experts("experts", d.experts, d.active, [&] {
    add_gated_mlp(table, d.hidden, d.expert_ffn, d.mlp_bias, ModuleKind::expert);
  });
  if (d.shared_experts == 0) return;
  table.inside("shared_experts", [&] {
    add_gated_mlp(table, d.hidden, checked_multiply(d.expert_ffn, d.shared_experts), d.mlp_bias);
  });
}
}  // namespace

void add_deepseek(ModelSpec& model, const Config& config, Head head, DeepSeek defaults) {
  const DeepSeek d = read(config, defaults);
  Table table;
  table.inside(head == Head::base ? "" : "model", [&] {
    table.embedding("embed_tokens", d.vocab, d.hidden);
    table.repeat("layers", d.layers, [&] {
      add_attention(table, config, d);
      table.rms_norm("input_layernorm", d.hidden);
      table.rms_norm("post_attention_layernorm", d.hidden);
    });
    table.repeat("layers", d.dense_layers, [&] {
      table.inside("mlp", [&] { add_gated_mlp(table, d.hidden, d.ffn, d.mlp_bias); });
    });
    table.repeat("layers", IndexRange{d.dense_layers, d.layers - d.dense_layers, 1},
                 [&] { table.inside("mlp", [&] { add_mixture(table, d); }); });
    table.rms_norm("norm", d.hidden);
  });
  const bool tied = config.flag("tie_word_embeddings", false);
  if (head == Head::language_model) table.head("lm_head", d.hidden, d.vocab, tied);
  add_classifier(table, config, head, d.hidden, "score");
  model.parameters = table.take();
  model.max_positions = d.positions;
}

}  // namespace plimsoll::models::families
