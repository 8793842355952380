#include "models/table/llama_like.h"

namespace plimsoll::models::families {

namespace {
// All experts of a layer stand in one tensor; attention has one learned sink for each head.
void add_block(Table& table, const LlamaLike& d, std::int64_t experts, std::int64_t active) {
  add_llama_attention(table, d);
  table.parameter("self_attn.sinks", {d.heads}, ModuleKind::other);
  table.parameter("mlp.router.weight", {experts, d.hidden}, ModuleKind::router);
  table.parameter("mlp.router.bias", {experts}, ModuleKind::router);
  const std::int64_t both = checked_multiply(2, d.ffn);
  const auto fused = [&](const char* name, Shape shape) {
    ParameterRow& row = table.parameter(name, shape, ModuleKind::expert);
    row.active = active;
    row.fused_experts = true;
  };
  fused("mlp.experts.gate_up_proj", {experts, d.hidden, both});
  fused("mlp.experts.gate_up_proj_bias", {experts, both});
  fused("mlp.experts.down_proj", {experts, d.ffn, d.hidden});
  fused("mlp.experts.down_proj_bias", {experts, d.hidden});
  table.rms_norm("input_layernorm", d.hidden);
  table.rms_norm("post_attention_layernorm", d.hidden);
}

void build(const Config& config, Head head, ModelSpec& model) {
  LlamaLike d = read_llama_like(config, {.vocab = 201088,
                                         .hidden = 2880,
                                         .ffn = 2880,
                                         .layers = 36,
                                         .heads = 64,
                                         .kv_heads = 8,
                                         .head_dim = 64,
                                         .positions = 131072});
  d.qkv_bias = d.out_bias = config.flag("attention_bias", true);
  const std::int64_t experts = config.repeats("num_local_experts", 128);
  const std::int64_t active = active_experts(config, "num_experts_per_tok", 4, experts);
  Table table;
  table.inside(head == Head::base ? "" : "model", [&] {
    table.embedding("embed_tokens", d.vocab, d.hidden);
    table.repeat("layers", d.layers, [&] { add_block(table, d, experts, active); });
    table.rms_norm("norm", d.hidden);
  });
  if (head == Head::language_model) table.head("lm_head", d.hidden, d.vocab, d.tied);
  add_classifier(table, config, head, d.hidden, "score");
  model.parameters = table.take();
  model.max_positions = d.positions;
}
}  // namespace

Family gpt_oss() {
  return {.model_type = "gpt_oss",
          .architectures = decoder_classes("GptOss"),
          .lora_targets = {},
          .build = build};
}

}  // namespace plimsoll::models::families
