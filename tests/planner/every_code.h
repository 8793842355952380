// Models of every kind of layer, and what may be changed of a step of theirs: laws are asked of
// each with each.
#pragma once

#include <array>
#include <functional>
#include <utility>
#include <vector>

#include "models/run_spec.h"
#include "models/storages.h"

namespace plimsoll::tests {

inline constexpr const char* kLlama =
    R"({"model_type": "llama", "hidden_size": 256, "vocab_size": 1000,
  "intermediate_size": 512, "num_hidden_layers": 2, "num_attention_heads": 4,
  "num_key_value_heads": 2, "max_position_embeddings": 512})";

using models::Strategy;
using Change = std::function<void(Strategy&)>;

inline constexpr const char* kGpt2 =
    R"({"model_type": "gpt2", "n_embd": 64, "n_head": 2, "n_layer": 2,
  "vocab_size": 1000, "n_positions": 128})";
inline constexpr const char* kGemma2 =
    R"({"model_type": "gemma2", "hidden_size": 64, "vocab_size": 1000,
  "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 2,
  "num_key_value_heads": 1, "head_dim": 32, "query_pre_attn_scalar": 32, "sliding_window": 32,
  "max_position_embeddings": 512})";
inline constexpr const char* kMixtral =
    R"({"model_type": "mixtral", "hidden_size": 64, "vocab_size": 1000,
  "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 2,
  "num_key_value_heads": 1, "num_local_experts": 4, "num_experts_per_tok": 2,
  "max_position_embeddings": 512, "sliding_window": null})";
inline constexpr const char* kBert =
    R"({"model_type": "bert", "hidden_size": 64, "vocab_size": 1000,
  "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 2,
  "max_position_embeddings": 128, "type_vocab_size": 2})";
inline constexpr const char* kNeoX =
    R"({"model_type": "gpt_neox", "hidden_size": 128, "vocab_size": 1000,
  "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 2,
  "max_position_embeddings": 128})";
inline constexpr const char* kFalcon =
    R"({"model_type": "falcon", "hidden_size": 64, "vocab_size": 1000,
  "num_hidden_layers": 2, "num_attention_heads": 2, "max_position_embeddings": 128})";
inline constexpr const char* kBloom =
    R"({"model_type": "bloom", "hidden_size": 64, "vocab_size": 1000,
  "n_layer": 2, "n_head": 2})";
inline constexpr const char* kQwen3 =
    R"({"model_type": "qwen3", "hidden_size": 64, "vocab_size": 1000,
  "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 2,
  "num_key_value_heads": 1, "head_dim": 32, "max_position_embeddings": 512})";

inline Change packed(const char* storage) {
  return [=](Strategy& s) {
    s.lora = models::Lora{.rank = 4, .targets = {"q_proj", "k_proj", "v_proj", "o_proj"}};
    s.param_dtype = DType::bf16;
    s.quantize =
        models::Quantization{.storage = models::find_packed_storage(storage), .kbit_prep = false};
  };
}
inline Change adapter(models::AdapterKind kind, bool dora = false) {
  return [=](Strategy& s) {
    s.lora = models::Lora{.kind = kind,
                          .rank = 4,
                          .targets = {"q_proj", "v_proj", "c_attn", "query", "query_key_value"},
                          .dora = dora};
    if (kind >= models::AdapterKind::prompt_tuning)
      s.lora->targets.clear(), s.lora->virtual_tokens = 8;
  };
}
inline Change kernels(models::Kernels of, models::Loss loss) {
  return [=](Strategy& s) { s.kernels = of, s.loss = loss; };
}
inline Change both(const Change& one, const Change& other) {
  return [=](Strategy& s) { one(s), other(s); };
}
inline Change float8(models::Fp8Recipe of) {
  return [=](Strategy& s) { s.precision = models::Precision::fp8_mixed, s.fp8_recipe = of; };
}
inline Change code(models::ModelCode of) {
  return [=](Strategy& s) { s.code = of; };
}

inline const std::vector<std::pair<const char*, Change>>& changes() {
  using models::Kernels;
  using models::Loss;
  using enum models::AdapterKind;
  const Change plain = [](Strategy&) {};
  const Change full = [](Strategy& s) { s.recompute.kind = models::RecomputeKind::full; };
  const Change eager = [](Strategy& s) { s.attention = models::Attention::eager; };
  const Change bf16 = [](Strategy& s) { s.precision = models::Precision::bf16; };
  const Change fp32 = [](Strategy& s) { s.precision = models::Precision::fp32; };
  const Change old = [](Strategy& s) { s.transformers = {4, 46, 0}; };
  const Change compiled = [](Strategy& s) { s.compile = models::Compile::block; };
  const Change padded = [](Strategy& s) { s.rows = models::Rows::padded; };
  static const std::vector<std::pair<const char*, Change>> all = {
      {"plain", plain},
      {"full", full},
      {"eager", eager},
      {"bf16", bf16},
      {"fp32", fp32},
      {"old", old},
      {"padded", padded},
      {"compiled", compiled},
      {"liger", kernels(Kernels::liger, Loss::full)},
      {"liger fused", kernels(Kernels::liger, Loss::fused)},
      {"chunked", kernels(Kernels::eager, Loss::chunked)},
      {"tiled", kernels(Kernels::eager, Loss::tiled)},
      {"tiled bf16", both(bf16, kernels(Kernels::eager, Loss::tiled))},
      {"liger bf16", both(bf16, kernels(Kernels::liger, Loss::fused))},
      {"lora", adapter(lora)},
      {"dora", adapter(lora, true)},
      {"vera", adapter(vera)},
      {"ia3", adapter(ia3)},
      {"lora full", both(adapter(lora), full)},
      {"prefix", adapter(prefix_tuning)},
      {"prompt", adapter(prompt_tuning)},
      {"p", adapter(p_tuning)},
      {"nf4", packed("nf4")},
      {"nf4-dq", packed("nf4-dq")},
      {"int8", packed("int8")},

      {"offload", [](Strategy& s) { s.offload.activations = true; }},
      {"flash", [](Strategy& s) { s.attention = models::Attention::flash_2; }},
      {"efficient", both(fp32, [](Strategy& s) { s.attention = models::Attention::efficient; })},
      {"efficient bf16", [](Strategy& s) { s.attention = models::Attention::efficient; }},
      {"cudnn", [](Strategy& s) { s.attention = models::Attention::cudnn; }},
      {"float8", float8(models::Fp8Recipe::tensorwise)},
      {"float8 rows", float8(models::Fp8Recipe::rowwise)},
      {"flex", [](Strategy& s) { s.attention = models::Attention::flex; }},
      {"tune", both(bf16, code(models::ModelCode::torchtune_0_6_1))},
      {"titan", code(models::ModelCode::torchtitan_0_2_2)},
      {"litgpt", code(models::ModelCode::litgpt_0_5_13)},
      {"litgpt 2024", code(models::ModelCode::litgpt_0_3_0)}};
  return all;
}

// The first card that multiplies float8 is Ada's.
inline const char* card_of(const Strategy& s) {
  return s.precision == models::Precision::fp8_mixed ? "h100-sxm-80gb" : "a100-sxm-80gb";
}

inline constexpr std::array kModels{kLlama, kGpt2,   kGemma2, kMixtral, kBert,
                                    kNeoX,  kFalcon, kBloom,  kQwen3};

}  // namespace plimsoll::tests
