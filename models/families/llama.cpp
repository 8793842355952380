#include "models/table/litgpt.h"
#include "models/table/llama_like.h"
#include "models/table/numerics.h"
#include "models/table/torchtune.h"

namespace plimsoll::models::families {

namespace {
// torchtitan models/llama/model.py (2024-03, 2024-12) and models/llama3/model/model.py (0.2.2):
// TransformerBlock.forward. Attention.forward holds what it read and made, under the names that
// rotation, and repetition where it copies, take over. Under tensor parallelism apply_tp
// (parallelize_llama.py; infra/parallelize.py) has PrepareModuleInput gather in front of attention
// and feed_forward, and RowwiseParallel(output_layouts=Shard(1)) scatter behind wo and w2: what the
// norm made is its caller's until those have returned.
Block torchtitan_block(const std::vector<ParameterRow>& rows, const Decoder& of) {
  const bool fused = of.norm == NormKind::rms_norm_fused, divided = of.sequence_parts > 1;
  BlockBuilder b(rows, of.hidden,
                 fused ? ModuleClass::rms_norm_fused : ModuleClass::rms_norm_inline);
  const auto all_of = [&](const char* name, ValueId part) {
    return divided ? b.gather_sequence(name, part) : part;
  };
  const ValueId normed = b.norm("input_layernorm", kBlockInput);
  const ValueId x = all_of("self_attn.gathered", normed);
  const ValueId q = b.linear("self_attn.q_proj", x);
  const ValueId k = b.linear("self_attn.k_proj", x);
  const ValueId v = b.linear("self_attn.v_proj", x);
  const ValueList rotated = b.complex_rotary("self_attn", q, k);
  const ValueList attention =
      b.attention("self_attn", rotated[0], rotated[1], v, EagerSoftmax::fp32);
  ValueId o = b.linear("self_attn.o_proj", attention[0]);
  if (divided) o = b.scatter_sequence("self_attn.scattered", o);
  const bool copies = of.repeats_groups && of.kv_heads > 1 && of.kv_heads < of.heads;
  ValueList held = copies ? ValueList{rotated[0], attention[0], x}
                          : ValueList{rotated[0], rotated[1], v, attention[0], x};
  if (divided) held.push_back(normed);
  b.leave("self_attn", held);
  const ValueId middle = b.add("self_attn", kBlockInput, o);
  const ValueId y = b.norm("post_attention_layernorm", middle);
  const ValueId down = gated_mlp(b, all_of("mlp.gathered", y), Activation::silu,
                                 divided ? "mlp.scattered" : nullptr);
  if (divided) b.leave("mlp", {y});
  b.add("mlp", middle, down);
  b.release({kBlockInput});
  return b.take();
}

// Its classes have neither biases nor a tied head, and heads as wide as they divide the stream.
void add_torchtitan(ModelSpec& model, const LlamaLike& d) {
  const bool has =
      !d.qkv_bias && !d.mlp_bias && !d.tied && checked_multiply(d.heads, d.head_dim) == d.hidden;
  if (!model.decoder || !has) return;
  const auto add = [&](ModelCode code, NormKind norm, bool repeats) {
    Decoder decoder = *model.decoder;
    decoder.bare = true;
    decoder.repeats_groups = repeats;
    decoder.norm = norm;
    decoder.attention_dropout = 0;
    auto block = std::make_shared<const Block>(torchtitan_block(model.parameters, decoder));
    model.other_forwards.push_back({.code = code,
                                    .before = {},
                                    .decoder = decoder,
                                    .blocks = {std::move(block)},
                                    .divided = torchtitan_block});
  };
  add(ModelCode::torchtitan_2024_03, NormKind::rms_norm_inline, true);
  add(ModelCode::torchtitan_2024_12, NormKind::rms_norm_inline, true);
  add(ModelCode::torchtitan_0_2_2, NormKind::rms_norm_fused, false);
}

void build(const Config& config, Head head, ModelSpec& model) {
  LlamaLike llama = read_llama_like(config, {.tied = false});
  // LlamaConfig.validate_architecture asks for it also where head_dim is given.
  config.check_divides("num_attention_heads", llama.heads, "hidden_size", llama.hidden);
  llama.qkv_bias = llama.out_bias = config.flag("attention_bias", false);
  llama.mlp_bias = config.flag("mlp_bias", false);
  add_llama(model, config, head, llama);
  set_llama_decoder(model, head, llama);
  add_torchtitan(model, llama);
  add_torchtune(model, llama);
  add_litgpt(model, llama);
}
}  // namespace

Family llama() {
  return {.model_type = "llama",
          .architectures = decoder_classes("Llama"),
          .lora_targets = {"q_proj", "v_proj"},
          .build = build,
          .numerics = llama_numerics};
}

}  // namespace plimsoll::models::families
