#include "models/table/llama_like.h"
#include "models/table/numerics.h"

namespace plimsoll::models::families {

namespace {
// transformers models/granite/modeling_granite.py, GraniteDecoderLayer.forward: Llama's, but for a
// branch's product with residual_multiplier. What attention and the MLP returned keeps its name
// until the sum takes it. attention_multiplier is the scale of the scores, and no operation.
Block block_of(const ModelSpec& model, const LlamaLike& d) {
  BlockBuilder b(model.parameters, d.hidden);
  const ValueId x = b.norm("input_layernorm", kBlockInput);
  const ValueList attention = llama_attention(b, d, x);
  const ValueId middle = b.add("self_attn", kBlockInput, b.scale("self_attn.scaled", attention[0]));
  b.release({attention[0]});
  const ValueId y = b.norm("post_attention_layernorm", middle);
  const ValueId down = gated_mlp(b, y);
  b.add("mlp", middle, b.scale("mlp.scaled", down));
  b.release({down, attention[1], kBlockInput});
  return b.take();
}

void build(const Config& config, Head head, ModelSpec& model) {
  LlamaLike llama = read_llama_like(config, {});
  llama.qkv_bias = llama.out_bias = config.flag("attention_bias", false);
  llama.mlp_bias = config.flag("mlp_bias", false);
  add_llama(model, config, head, llama);
  set_llama_decoder(model, head, llama, block_of);
  if (!model.decoder) return;
  model.decoder->embedding_scale = EmbeddingScale::model;
  model.decoder->scaled_logits = true;
}
}  // namespace

Family granite() {
  return {
      .model_type = "granite",
      .architectures = {{"GraniteForCausalLM", Head::language_model}, {"GraniteModel", Head::base}},
      .lora_targets = {},
      .build = build,
      .numerics = granite_numerics};
}

}  // namespace plimsoll::models::families
