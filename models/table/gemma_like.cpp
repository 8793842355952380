#include "models/table/gemma_like.h"

#include <algorithm>
#include <utility>

namespace plimsoll::models::families {

namespace {

// transformers models/gemma2/modeling_gemma2.py, Gemma2DecoderLayer.forward; Gemma 3 norms queries
// and keys behind the three GEMMs, Gemma 1 has no norms behind its branches.
Block block_of(const ModelSpec& model, const LlamaLike& d, bool sliding, bool caps_scores) {
  BlockBuilder b(model.parameters, d.hidden, ModuleClass::rms_norm_one_plus);
  const ValueId x = b.norm("input_layernorm", kBlockInput);
  ValueId q = b.linear("self_attn.q_proj", x), k = b.linear("self_attn.k_proj", x);
  const ValueId v = b.linear("self_attn.v_proj", x);
  if (d.qk_norm) q = b.norm("self_attn.q_norm", q);
  if (d.qk_norm) k = b.norm("self_attn.k_norm", k);
  const ValueList rotated = b.rotary("self_attn", q, k);
  const ValueList attention =
      b.attention("self_attn", rotated[0], rotated[1], v, EagerSoftmax::fp32);
  ValueId branch = b.linear("self_attn.o_proj", attention[0]);
  b.leave("self_attn", {rotated[0], rotated[1], v, x});
  if (d.sandwich_norms) branch = b.norm("post_attention_layernorm", branch);
  const ValueId middle = b.add("self_attn", kBlockInput, branch);
  const ValueId y =
      b.norm(d.sandwich_norms ? "pre_feedforward_layernorm" : "post_attention_layernorm", middle);
  branch = gated_mlp(b, y, Activation::gelu_tanh);
  if (d.sandwich_norms) branch = b.norm("post_feedforward_layernorm", branch);
  b.add("mlp", middle, branch);
  b.release({attention[1], kBlockInput});
  if (sliding) b.slide();
  if (caps_scores) b.cap_scores();
  return b.take();
}

// The shortest pattern that the layers repeat.
std::size_t period_of(const std::vector<bool>& sliding) {
  for (std::size_t n = 1; n < sliding.size(); ++n) {
    std::size_t i = n;
    while (i < sliding.size() && sliding[i] == sliding[i - n]) ++i;
    if (i == sliding.size()) return n;
  }
  return std::max<std::size_t>(1, sliding.size());
}

}  // namespace

void set_gemma_decoder(ModelSpec& model, const Config& config, Head head, const LlamaLike& d,
                       std::vector<bool> sliding, SoftCaps caps) {
  if (d.window == 0) sliding.assign(sliding.size(), false);  // "sliding_window": null
  constexpr std::size_t kLongestPattern = 12;  // twice the longest of a published model
  constexpr const char* kActivation = "gelu_pytorch_tanh";
  const std::string activation = config.text("hidden_activation", kActivation);
  const std::size_t period = period_of(sliding);
  if (!has_step(head))
    model.no_decoder = "architecture " + model.architecture;
  else if (activation != kActivation)
    model.no_decoder = "hidden_activation '" + activation + "'";
  else if (config.flag("use_bidirectional_attention", false))
    model.no_decoder = "use_bidirectional_attention";
  else if (period > kLongestPattern)
    model.no_decoder = "layer_types that repeat no pattern";
  if (!model.no_decoder.empty()) return;
  set_llama_facts(model, d);
  Decoder& decoder = *model.decoder;
  decoder.norm = NormKind::rms_norm_one_plus;
  decoder.embedding_scale = EmbeddingScale::module;
  decoder.soft_capped_logits = caps.logits;
  const auto slide = std::ranges::count(sliding, true);
  if (slide == 0) decoder.window = 0;
  if (slide > 0) decoder.full_layers = d.layers - slide;
  for (std::size_t i = 0; i < std::max<std::size_t>(1, std::min(period, sliding.size())); ++i)
    model.blocks.push_back(std::make_shared<const Block>(
        block_of(model, d, !sliding.empty() && sliding[i], caps.scores)));
}

}  // namespace plimsoll::models::families
