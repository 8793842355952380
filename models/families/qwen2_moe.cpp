#include "models/table/qwen_moe.h"

namespace plimsoll::models::families {

namespace {
void build(const Config& config, Head head, ModelSpec& model) {
  LlamaLike llama = read_llama_like(config, {.vocab = 151936,
                                             .hidden = 2048,
                                             .ffn = 5632,
                                             .layers = 24,
                                             .heads = 16,
                                             .kv_heads = 16,
                                             .positions = 32768});
  llama.qkv_bias = config.flag("qkv_bias", true);
  const std::int64_t experts = config.repeats("num_experts", 60);
  add_qwen_moe(model, config, head, llama, experts, config.count("moe_intermediate_size", 1408),
               active_experts(config, "num_experts_per_tok", 4, experts),
               config.count("shared_expert_intermediate_size", 5632));
}
}  // namespace

Family qwen2_moe() {
  return {.model_type = "qwen2_moe",
          .architectures = decoder_classes("Qwen2Moe"),
          .lora_targets = {},
          .build = build};
}

}  // namespace plimsoll::models::families
