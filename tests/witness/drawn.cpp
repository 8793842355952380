#include "tests/witness/drawn.h"

#include <random>

#include "models/storages.h"

namespace plimsoll::witness {

namespace {

using models::Precision;
using models::RecomputeKind;

std::string field(const std::string& name, std::int64_t value) {
  return ", \"" + name + "\": " + std::to_string(value);
}
std::string field(const std::string& name, bool value) {
  return ", \"" + name + "\": " + (value ? "true" : "false");
}

class Draw {
 public:
  explicit Draw(std::uint64_t seed, bool float8 = false)
      : random_(seed * 0x9E3779B97F4A7C15u + 1), float8_(float8) {}

  Case run() {
    c_.strategy.stack = models::Stack::plimsoll;
    c_.strategy.device = models::Device::cpu;
    model();
    ranks();
    numbers();
    trained();
    models::Strategy& s = c_.strategy;
    project_where_whole(s, between(1, 12));
    s.recompute = {one_of({RecomputeKind::none, RecomputeKind::selective, RecomputeKind::full,
                           RecomputeKind::sqrt, RecomputeKind::every, RecomputeKind::block,
                           RecomputeKind::nth, RecomputeKind::recursive}),
                   between(1, 4)};
    // One layer has no second to be a checkpoint: both refuse that.
    if (models::leaves_layers(s.recompute.kind)) s.recompute.layers = 1 + s.recompute.layers % 2;
    make_again_one_by_one(c_.model, s.recompute);
    s.attention =
        one_of({models::Attention::flash, models::Attention::eager, models::Attention::math});
    s.loss = one_of({models::Loss::full, models::Loss::chunked, models::Loss::fused});
    c_.batch = {.seq_len = float8_    ? 16
                           : maybe(6) ? 1
                                      : between(2, 20),
                .micro_batch = between(1, 3),
                .grad_accum = one_of({1, 1, 2, 3, 4, 6})};
    s.offload.activations = s.recompute.kind == RecomputeKind::full && maybe(2);
    s.optimizer_in_backward =
        c_.batch.grad_accum == 1 && s.precision != Precision::fp16_mixed && maybe(3);
    if (maybe(3))
      s.data.reduce_dtype = s.precision == Precision::fp16_mixed ? DType::fp16 : DType::bf16;
    c_.deterministic = maybe(2);
    c_.steps = maybe(3) ? 2 : 1;
    if (maybe(3)) c_.loss_scale = 1e30;  // overflows: the optimizer is skipped, its memory is not
    return c_;
  }

 private:
  std::int64_t between(std::int64_t least, std::int64_t most) {
    return least +
           static_cast<std::int64_t>(random_() % static_cast<std::uint64_t>(most - least + 1));
  }
  bool maybe(std::int64_t of) { return between(1, of) == 1; }  // once in `of`
  template <class T>
  T one_of(std::initializer_list<T> list) {
    return list.begin()[between(0, static_cast<std::int64_t>(list.size()) - 1)];
  }

  void model() {
    do {
      c_.model = one_of({"gemma", "gemma2", "gemma3_text", "gpt2", "gpt_bigcode", "gpt_neox",
                         "granite", "llama", "mistral", "mixtral", "olmo2", "opt", "phi", "phi3",
                         "qwen2", "qwen3", "qwen3_moe"});
    } while (float8_ && mixture());
    layers_ = between(1, 6);
    const std::int64_t kv = between(1, 3), heads = kv * between(1, 3),
                       d = float8_ ? one_of({16, 16, 8}) : one_of({2, 4, 6, 8, 16});
    std::string json = "{\"model_type\": \"" + c_.model + "\"";
    if (gpt2()) {
      const auto dropout = [&] { return one_of<std::string>({"0", "0", "0.1"}); };
      json += field("n_embd", heads * d) + field("n_head", heads) + field("n_layer", layers_) +
              field("vocab_size", between(2, 99)) + field("n_positions", between(20, 40));
      for (const char* where : {"resid_pdrop", "embd_pdrop", "attn_pdrop"})
        json += ", \"" + std::string(where) + "\": " + dropout();
      if (maybe(3)) json += field("tie_word_embeddings", false);
      if (maybe(3)) json += field("n_inner", inner(70));
    } else if (opt()) {
      json += field("hidden_size", heads * d) + field("word_embed_proj_dim", heads * d) +
              field("num_attention_heads", heads) + field("num_hidden_layers", layers_) +
              field("ffn_dim", inner(50)) + field("vocab_size", between(2, 99)) +
              field("max_position_embeddings", between(20, 40)) +
              field("tie_word_embeddings", maybe(2)) + field("enable_bias", !maybe(4)) +
              ", \"dropout\": " + one_of<std::string>({"0", "0.1"});
    } else if (neox()) {
      const std::int64_t wide =
          float8_ ? 16 : 4 * between(1, 4);  // half of a head is rotated, in pairs
      json += field("hidden_size", heads * wide) + field("num_attention_heads", heads) +
              field("num_hidden_layers", layers_) + field("intermediate_size", inner(50)) +
              field("vocab_size", between(2, 99)) + field("max_position_embeddings", 64L) +
              ", \"rotary_pct\": 0.5, \"hidden_dropout\": " + one_of<std::string>({"0", "0.1"}) +
              field("tie_word_embeddings", maybe(3)) + field("attention_bias", !maybe(4)) +
              field("use_parallel_residual", !maybe(3));
    } else if (phi()) {
      const std::int64_t wide = float8_ ? 16 : 4 * between(1, 4);
      json += field("hidden_size", heads * wide) + field("num_attention_heads", heads) +
              field("num_key_value_heads", kv) + field("num_hidden_layers", layers_) +
              field("intermediate_size", inner(50)) + field("vocab_size", between(2, 99)) +
              field("max_position_embeddings", 64L) +
              ", \"resid_pdrop\": " + one_of<std::string>({"0", "0.1"});
    } else {
      // The heads of Qwen2 and Llama divide the hidden width; the others may have any head
      // dimension.
      const bool whole =
          c_.model == "qwen2" || maybe(2) || c_.model == "llama" || c_.model == "phi3";
      const std::int64_t hidden = whole ? heads * d : inner(40);
      json += field("hidden_size", hidden) + field("num_attention_heads", heads) +
              field("num_key_value_heads", kv) + field("intermediate_size", inner(50)) +
              field("vocab_size", between(2, 99)) + field("num_hidden_layers", layers_) +
              field("max_position_embeddings", 64L) + field("tie_word_embeddings", maybe(2));
      if (c_.model != "qwen2") json += field("head_dim", d);
      if (c_.model == "granite")
        json += field("residual_multiplier", 2L) + field("embedding_multiplier", 3L);
      if (c_.model == "mixtral")
        json += field("num_local_experts", 4L) + field("num_experts_per_tok", between(1, 4));
      if (c_.model == "qwen3_moe")
        json += field("num_experts", 4L) + field("num_experts_per_tok", between(1, 4)) +
                field("moe_intermediate_size", between(1, 30)) + field("norm_topk_prob", maybe(2)) +
                field("decoder_sparse_step", between(1, std::min<std::int64_t>(3, layers_)));
      if (c_.model == "phi3" && d % 4 == 0 && maybe(2)) json += ", \"partial_rotary_factor\": 0.5";
      if (c_.model == "phi3" && maybe(2)) json += ", \"resid_pdrop\": 0.1";
      if (c_.model == "phi3") json += ", \"pad_token_id\": null";
      if (c_.model == "gemma2") json += field("sliding_window", between(1, 12));
      if (c_.model == "gemma3_text")
        json += field("sliding_window", between(1, 12)) +
                field("sliding_window_pattern", between(2, 4));
      if (c_.model == "mistral") json += field("sliding_window", between(1, 12));
      if (c_.model == "llama" && maybe(3)) json += field("attention_bias", true);
      if (c_.model == "llama" && maybe(3)) json += field("mlp_bias", true);
    }
    c_.config = json + "}";
  }

  // A width; in 8 bits most are multiples of 16.
  std::int64_t inner(std::int64_t most) {
    return float8_ && !maybe(4) ? 16 * between(1, most / 16) : between(1, most);
  }

  void ranks() {
    models::Strategy& s = c_.strategy;
    s.gpus = between(1, 8);
    s.data.zero = static_cast<int>(between(0, 3));
    std::vector<std::int64_t> groups;
    for (std::int64_t n = 1; n <= s.gpus; ++n)
      if (s.gpus % n == 0) groups.push_back(n);
    if (s.data.zero > 0 && maybe(2))
      s.data.shard_group = groups[static_cast<std::size_t>(
          between(0, static_cast<std::int64_t>(groups.size()) - 1))];
    // Of wider layers small buckets would make many thousand messages.
    s.data.bucket_cap = Bytes(float8_ ? one_of<std::int64_t>({1000, 25 << 20})
                                      : one_of<std::int64_t>({1, 64, 1000, 25 << 20}));
  }

  void numbers() {
    models::Strategy& s = c_.strategy;
    s.precision =
        one_of({Precision::fp32, Precision::bf16_mixed, Precision::fp16_mixed, Precision::bf16});
    if (float8_) s.precision = Precision::fp8_mixed;
    if (maybe(3)) s.grad_dtype = DType::fp32;
    if ((s.precision == Precision::bf16_mixed || float8_) && maybe(3)) s.master_weights = false;
    if (s.precision == Precision::bf16 && maybe(3)) s.master_weights = true;
    s.optimizer =
        one_of({models::Optimizer::adamw, models::Optimizer::adamw, models::Optimizer::momentum,
                models::Optimizer::sgd, models::Optimizer::lion, models::Optimizer::adam8bit,
                models::Optimizer::lion8bit, models::Optimizer::galore});
    s.offload.optimizer = maybe(4);
  }

  std::vector<std::string> patterns(std::int64_t most) {
    const std::string layer = std::to_string(between(0, layers_ - 1));
    std::vector<std::string> list;
    for (std::int64_t n = between(1, most); n > 0; --n)
      list.push_back(
          gpt2()   ? one_of<std::string>({"transformer.wte.*", "transformer.wpe.*", "*ln_1*",
                                          "*ln_2.weight", "*ln_f*", "*.bias", "*c_attn*", "*c_proj*",
                                          "*c_fc.weight", "transformer.h." + layer + ".*",
                                          "transformer.h." + layer + ".mlp.*", "lm_head*"})
          : neox() ? one_of<std::string>(
                         {"gpt_neox.embed_in.*", "*input_layernorm*", "*post_attention_layernorm*",
                          "gpt_neox.final_layer_norm*", "*.bias", "*query_key_value*",
                          "*attention.dense*", "*dense_h_to_4h*", "*dense_4h_to_h*",
                          "gpt_neox.layers." + layer + ".*"})
          : phi()     ? one_of<std::string>({"model.embed_tokens.*", "*input_layernorm*",
                                             "model.final_layernorm*", "*.bias", "*q_proj*", "*k_proj*",
                                             "*v_proj*", "*dense*", "*fc1*", "*fc2*", "lm_head*",
                                             "lm_head.bias", "model.layers." + layer + ".*"})
          : mixture() ? one_of<std::string>({"model.embed_tokens.*", "*input_layernorm*",
                                             "model.norm*", "*q_proj*", "*o_proj*", "*.experts.*",
                                             c_.model == "mixtral" ? "*w2*" : "*down_proj*",
                                             c_.model == "mixtral" ? "*.gate.*" : "*mlp.gate.*",
                                             "lm_head*", "model.layers." + layer + ".*"})
          : phi3()    ? one_of<std::string>({"model.embed_tokens.*", "*input_layernorm*",
                                             "*post_attention_layernorm*", "model.norm*", "*qkv_proj*",
                                             "*o_proj*", "*gate_up_proj*", "*down_proj*", "lm_head*",
                                             "model.layers." + layer + ".*"})
          : opt()
              ? one_of<std::string>({"model.decoder.embed_tokens.*",
                                     "model.decoder.embed_positions.*", "*self_attn_layer_norm*",
                                     "model.decoder.final_layer_norm*", "*.bias",
                                     "*q_proj*", "*v_proj*", "*out_proj*", "*fc1*", "*fc2*",
                                     "lm_head*", "model.decoder.layers." + layer + ".*"})
              : one_of<std::string>(
                    {"model.embed_tokens.*", "*input_layernorm*", "*post_attention_layernorm*",
                     "model.norm*", "*.bias", "*q_proj*", "*k_proj*", "*v_proj*", "*o_proj*",
                     "*k_norm*", "*q_norm*", "*gate_proj*", "*up_proj*", "*down_proj*", "lm_head*",
                     "model.layers." + layer + ".*", "model.layers." + layer + ".mlp.*"}));
    return list;
  }

  void trained() {
    models::Strategy& s = c_.strategy;
    if (!float8_ && maybe(3)) {
      s.lora = models::Lora{
          .rank = between(1, 5),
          .alpha = 4,
          .dropout = maybe(2) ? 0.25 : 0,
          .targets = {mixture() ? "attention" : one_of<std::string>({"all-linear", "attention"})}};
      if (maybe(3))
        s.lora->targets =
            opt()       ? std::vector<std::string>{one_of<std::string>({"q_proj", "fc1", "fc2"})}
            : mixture() ? std::vector<std::string>{one_of<std::string>({"q_proj", "o_proj"})}
            : phi()
                ? std::vector<std::string>{one_of<std::string>({"q_proj", "dense", "fc1", "fc2"})}
            : phi3() ? std::vector<std::string>{one_of<std::string>(
                           {"qkv_proj", "o_proj", "gate_up_proj", "down_proj"})}
            : neox() ? std::vector<std::string>{one_of<std::string>(
                           {"query_key_value", "dense", "dense_h_to_4h", "dense_4h_to_h"})}
            : gpt2() ? std::vector<std::string>{one_of<std::string>(
                           {"c_fc", "c_attn", "c_proj", "mlp.c_proj"})}
                     : std::vector<std::string>{one_of<std::string>(
                           {"down_proj", "k_proj", "o_proj", "gate_proj", "up_proj"})};
      if (s.precision != Precision::fp32 && maybe(2))
        s.lora->dtype = s.precision == Precision::fp16_mixed ? DType::fp16 : DType::bf16;
      if (maybe(4))
        s.train = patterns(2);
      else if (maybe(2))
        s.quantize = {.storage = models::find_packed_storage(
                          one_of<const char*>({"nf4", "nf4-dq", "int8", "int8-affine"}))};
      return;
    }
    if (maybe(2)) s.freeze = patterns(4);
    if (maybe(9)) s.freeze = {"*"};
    if (maybe(3)) s.train = patterns(3);
  }

  bool opt() const { return c_.model == "opt"; }
  bool mixture() const { return c_.model == "mixtral" || c_.model == "qwen3_moe"; }
  bool phi() const { return c_.model == "phi"; }
  bool phi3() const { return c_.model == "phi3"; }
  bool neox() const { return c_.model == "gpt_neox"; }
  bool gpt2() const { return c_.model.starts_with("gpt") && !neox(); }

  std::mt19937_64 random_;
  bool float8_;
  std::int64_t layers_ = 1;
  Case c_;
};

}  // namespace

Case drawn(std::uint64_t seed) {
  return Draw(seed).run();
}
Case drawn_in_float8(std::uint64_t seed) {
  return Draw(seed, true).run();
}
std::vector<Case> planned_in_float8(std::size_t count) {
  std::vector<Case> cases;
  for (std::uint64_t seed = 1; cases.size() < count; ++seed) {
    Case c = drawn_in_float8(seed);
    try {
      predicted(c);
    } catch (const Error&) {
      continue;
    }
    cases.push_back(std::move(c));
  }
  return cases;
}

// 524289 * 256 * 4 B are more than decisions::kLossChunk, so a chunk has 128 rows; 2 * 65 tokens.
Case two_chunks(models::Loss loss) {
  Case c;
  c.config = R"({"model_type": "llama", "hidden_size": 8, "num_attention_heads": 1,
      "num_key_value_heads": 1, "head_dim": 8, "intermediate_size": 8, "vocab_size": 524289,
      "num_hidden_layers": 1, "max_position_embeddings": 80})";
  c.strategy.stack = models::Stack::plimsoll;
  c.strategy.device = models::Device::cpu;
  c.strategy.precision = Precision::fp32;
  c.strategy.optimizer = models::Optimizer::sgd;
  c.strategy.loss = loss;
  c.batch = {.seq_len = 65, .micro_batch = 2};
  return c;
}

}  // namespace plimsoll::witness
