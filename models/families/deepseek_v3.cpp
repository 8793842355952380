#include "models/table/deepseek.h"

namespace plimsoll::models::families {

namespace {
// The main model: what num_nextn_predict_layers adds to the checkpoint (multi-token prediction) is
// not loaded by Transformers and not counted.
void build(const Config& config, Head head, ModelSpec& model) {
  add_deepseek(model, config, head,
               {.vocab = 129280,
                .hidden = 7168,
                .ffn = 18432,
                .expert_ffn = 2048,
                .layers = 61,
                .heads = 128,
                .experts = 256,
                .shared_experts = 1,
                .active = 8,
                .dense_layers = 3,
                .positions = 4096,
                .mlp_bias = false,
                .correction_bias = true});
}
}  // namespace

Family deepseek_v3() {
  return {.model_type = "deepseek_v3",
          .architectures = decoder_classes("DeepseekV3"),
          .lora_targets = {},
          .build = build};
}

}  // namespace plimsoll::models::families
