#include "models/table/mixture.h"
#include "models/table/numerics.h"

namespace plimsoll::models::families {

namespace {
void build(const Config& config, Head head, ModelSpec& model) {
  LlamaLike d = read_llama_like(config, {.ffn = 14336, .kv_heads = 8, .positions = 131'072});
  d.window = config.natural("sliding_window", 0);
  const std::int64_t experts = config.repeats("num_local_experts", 8);
  const std::int64_t active = active_experts(config, "num_experts_per_tok", 2, experts);
  Table table;
  table.inside(head == Head::base ? "" : "model", [&] {
    table.embedding("embed_tokens", d.vocab, d.hidden);
    table.repeat("layers", d.layers, [&] {
      add_llama_attention(table, d);
      table.router("block_sparse_moe.gate", d.hidden, experts);
      table.experts("block_sparse_moe.experts", experts, active, [&] {
        table.expert("w1", d.hidden, d.ffn, kGateUp);
        table.expert("w2", d.ffn, d.hidden, kDown);
        table.expert("w3", d.hidden, d.ffn, kGateUp);
      });
      table.rms_norm("input_layernorm", d.hidden);
      table.rms_norm("post_attention_layernorm", d.hidden);
    });
    table.rms_norm("norm", d.hidden);
  });
  if (head == Head::language_model) table.head("lm_head", d.hidden, d.vocab, d.tied);
  add_classifier(table, config, head, d.hidden, "score");
  model.parameters = table.take();
  model.max_positions = d.positions;
  set_mixture_decoder(model, config, head, d,
                      {.router = "block_sparse_moe.gate",
                       .experts = "block_sparse_moe.experts",
                       .gate = "w1",
                       .up = "w3",
                       .down = "w2",
                       .normalizes = true,
                       .wide_scores = true},
                      std::vector<bool>(static_cast<std::size_t>(d.layers), true));
}
}  // namespace

Family mixtral() {
  return {.model_type = "mixtral",
          .architectures = decoder_classes("Mixtral"),
          .lora_targets = {"q_proj", "v_proj"},
          .build = build,
          .numerics = mixtral_numerics};
}

}  // namespace plimsoll::models::families
