#include <algorithm>

#include "models/table/llama_like.h"

namespace plimsoll::models::families {

namespace {
// All experts of a layer stand in one tensor; attention has one learned sink for each head, which
// named_parameters() lists in front of its modules' parameters.
void add_block(Table& table, const LlamaLike& d, std::int64_t experts, std::int64_t active) {
  table.parameter("self_attn.sinks", {d.heads}, ModuleKind::other);
  add_llama_attention(table, d);
  table.parameter("mlp.router.weight", {experts, d.hidden}, ModuleKind::router).bare = true;
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

// transformers models/gpt_oss/modeling_gpt_oss.py. A layer's frame names `_` what attention returns
// beside its result, and then what the MLP does: each token's scores.
Block block_of(const ModelSpec& model, const LlamaLike& d, bool sliding) {
  BlockBuilder b(model.parameters, d.hidden, ModuleClass::rms_norm_fp32);
  const ValueId x = b.norm("input_layernorm", kBlockInput);
  const ValueId q = b.linear("self_attn.q_proj", x), k = b.linear("self_attn.k_proj", x);
  const ValueId v = b.linear("self_attn.v_proj", x);
  const ValueList rotated = b.half_rotary("self_attn", q, k);
  const ValueList attention = b.sink_attention("self_attn", rotated[0], rotated[1], v);
  const ValueId o = b.linear("self_attn.o_proj", attention[0]);
  b.leave("self_attn", {rotated[0], rotated[1], v, x});
  const ValueId middle = b.add("self_attn", kBlockInput, o);
  const ValueId y = b.norm("post_attention_layernorm", middle);
  const ValueId logits = b.linear("mlp.router", y);
  const ValueList routed = b.clamped_experts("mlp.experts", logits, y);
  b.leave("mlp", {y, logits, routed[2], attention[1]});
  b.add("mlp", middle, routed[0]);
  b.release({routed[1], kBlockInput});
  if (sliding) b.slide();
  return b.take();
}

// What is in the way, or nothing.
std::string difference(const Config& config, Head head, const LlamaLike& d, std::int64_t experts,
                       const ModelSpec& model) {
  // ATen/native/cuda/TensorTopK.cu, should_use_sort: longer rows go to another kernel.
  constexpr std::int64_t kMostSorted = 400;
  if (head != Head::language_model) return "architecture " + model.architecture;
  if (d.activation != "silu" && d.activation != "swish")
    return "hidden_act '" + d.activation + "' in a gated MLP";
  if (config.flag("output_router_logits", false)) return "output_router_logits";
  if (experts >= kMostSorted) return std::to_string(experts) + " experts";
  return "";
}

void set_decoder(ModelSpec& model, const Config& config, Head head, const LlamaLike& d,
                 std::int64_t experts) {
  model.no_decoder = difference(config, head, d, experts, model);
  if (!model.no_decoder.empty()) return;
  const std::vector<bool> sliding =
      sliding_layers(config, d.layers, [](std::int64_t i) { return i % 2 == 0; });
  const auto slide = std::ranges::count(sliding, true);
  set_llama_facts(model, d);
  Decoder& decoder = *model.decoder;
  decoder.norm = NormKind::rms_norm_fp32;
  decoder.half_rotary = true;
  decoder.masks_without_positions = true;
  decoder.eager_attention = true;  // GptOssPreTrainedModel._supports_sdpa
  decoder.full_layers = d.layers - slide;
  if (slide == 0) decoder.window = 0;
  const std::array<std::shared_ptr<const Block>, 2> kinds{
      std::make_shared<const Block>(block_of(model, d, false)),
      std::make_shared<const Block>(block_of(model, d, true))};
  for (const bool slides : sliding) model.blocks.push_back(kinds[slides ? 1 : 0]);
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
  d.window = config.natural("sliding_window", 128);
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
  set_decoder(model, config, head, d, experts);
}
}  // namespace

Family gpt_oss() {
  return {.model_type = "gpt_oss",
          .architectures = decoder_classes("GptOss"),
          .lora_targets = {},
          .build = build};
}

}  // namespace plimsoll::models::families
