#include "models/table/litgpt.h"
#include "models/table/llama_like.h"
#include "models/table/numerics.h"
#include "models/table/torchtune.h"

namespace plimsoll::models::families {

namespace {
void build(const Config& config, Head head, ModelSpec& model) {
  LlamaLike llama = read_llama_like(config, {.ffn = 14336, .kv_heads = 8, .positions = 131'072});
  llama.window = config.natural("sliding_window", 4096);
  add_llama(model, config, head, llama);
  set_llama_decoder(model, head, llama);
  add_torchtune(model, llama);
  add_litgpt(model, llama);
}
}  // namespace

Family mistral() {
  return {.model_type = "mistral",
          .architectures = decoder_classes("Mistral"),
          .lora_targets = {"q_proj", "v_proj"},
          .build = build,
          .numerics = llama_numerics};
}

}  // namespace plimsoll::models::families
