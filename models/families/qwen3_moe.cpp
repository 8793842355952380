#include "models/table/mixture.h"
#include "models/table/numerics.h"
#include "models/table/qwen_moe.h"

namespace plimsoll::models::families {

namespace {
void build(const Config& config, Head head, ModelSpec& model) {
  LlamaLike llama = read_llama_like(config, {.vocab = 151936,
                                             .hidden = 2048,
                                             .ffn = 6144,
                                             .layers = 24,
                                             .heads = 32,
                                             .kv_heads = 4,
                                             .positions = 32768,
                                             .qk_norm = true});
  llama.qkv_bias = llama.out_bias = config.flag("attention_bias", false);
  const bool slides = config.flag("use_sliding_window", false);
  llama.window = slides ? config.natural("sliding_window", 4096) : 0;
  const std::int64_t experts = config.repeats({"num_experts", "num_local_experts"}, 128);
  const std::vector<bool> sparse =
      add_qwen_moe(model, config, head, llama, experts, config.count("moe_intermediate_size", 768),
                   active_experts(config, "num_experts_per_tok", 8, experts), 0);
  set_mixture_decoder(model, config, head, llama,
                      {.router = "mlp.gate",
                       .experts = "mlp.experts",
                       .normalizes = config.flag("norm_topk_prob", false)},
                      sparse);
}
}  // namespace

Family qwen3_moe() {
  return {.model_type = "qwen3_moe",
          .architectures = decoder_classes("Qwen3Moe"),
          .lora_targets = {},
          .build = build,
          .numerics = llama_numerics};
}

}  // namespace plimsoll::models::families
