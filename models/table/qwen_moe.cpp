#include "models/table/qwen_moe.h"

#include <algorithm>

namespace plimsoll::models::families {

namespace {
struct Layers {
  std::vector<std::int64_t> sparse, dense;
};

// Qwen2MoeDecoderLayer: routed where (i + 1) is a multiple of decoder_sparse_step and i is not in
// mlp_only_layers.
Layers layers_of(const Config& config, std::int64_t count) {
  const std::vector<std::int64_t> plain = config.naturals("mlp_only_layers", kMostRepeats);
  const std::int64_t step = config.count("decoder_sparse_step", 1);
  Layers layers;
  for (std::int64_t i = 0; i < count; ++i) {
    const bool sparse = (i + 1) % step == 0 && std::ranges::find(plain, i) == plain.end();
    (sparse ? layers.sparse : layers.dense).push_back(i);
  }
  return layers;
}
}  // namespace

std::vector<bool> add_qwen_moe(ModelSpec& model, const Config& config, Head head,
                               const LlamaLike& d, std::int64_t experts, std::int64_t expert_ffn,
                               std::int64_t active, std::int64_t shared_ffn) {
  const Layers layers = layers_of(config, d.layers);
  Table table;
  table.inside(head == Head::base ? "" : "model", [&] {
    table.embedding("embed_tokens", d.vocab, d.hidden);
    table.repeat("layers", d.layers, [&] { add_llama_attention(table, d); });
    for (const IndexRange& range : ranges_of(layers.dense))
      table.repeat("layers", range,
                   [&] { table.inside("mlp", [&] { add_gated_mlp(table, d.hidden, d.ffn); }); });
    for (const IndexRange& range : ranges_of(layers.sparse))
      table.repeat("layers", range, [&] {
        table.experts("mlp.experts", experts, active, [&] {
          table.expert("gate_proj", d.hidden, expert_ffn, kGateUp);
          table.expert("up_proj", d.hidden, expert_ffn, kGateUp);
          table.expert("down_proj", expert_ffn, d.hidden, kDown);
        });
        table.router("mlp.gate", d.hidden, experts);
        if (shared_ffn == 0) return;
        table.inside("mlp.shared_expert", [&] { add_gated_mlp(table, d.hidden, shared_ffn); });
        table.linear("mlp.shared_expert_gate", d.hidden, 1);
      });
    table.repeat("layers", d.layers, [&] {
      table.rms_norm("input_layernorm", d.hidden);
      table.rms_norm("post_attention_layernorm", d.hidden);
    });
    table.rms_norm("norm", d.hidden);
  });
  if (head == Head::language_model) table.head("lm_head", d.hidden, d.vocab, d.tied);
  add_classifier(table, config, head, d.hidden, "score");
  model.parameters = table.take();
  model.max_positions = d.positions;
  std::vector<bool> sparse(static_cast<std::size_t>(d.layers), false);
  for (const std::int64_t layer : layers.sparse) sparse[static_cast<std::size_t>(layer)] = true;
  return sparse;
}

}  // namespace plimsoll::models::families
