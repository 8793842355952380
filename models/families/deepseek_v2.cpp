#include "models/table/deepseek.h"

namespace plimsoll::models::families {

namespace {
void build(const Config& config, Head head, ModelSpec& model) {
  add_deepseek(model, config, head,
               {.vocab = 102400,
                .hidden = 4096,
                .ffn = 11008,
                .expert_ffn = 1407,
                .layers = 32,
                .heads = 32,
                .experts = 64,
                .shared_experts = 2,
                .active = 0,
                .dense_layers = 0,
                .positions = 2048,
                .mlp_bias = true,
                .correction_bias = false});
}
}  // namespace

Family deepseek_v2() {
  return {.model_type = "deepseek_v2",
          .architectures = {{"DeepseekV2ForCausalLM", Head::language_model},
                            {"DeepseekV2Model", Head::base},
                            {"DeepseekV2ForSequenceClassification", Head::sequence_classification}},
          .lora_targets = {},
          .build = build};
}

}  // namespace plimsoll::models::families
