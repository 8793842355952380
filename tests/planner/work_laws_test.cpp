// What holds of the work of every op, whatever code runs: who only lets go of tensors moves nothing
// and launches nothing.
#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "models/storages.h"
#include "tests/planner/written_work.h"

using namespace plimsoll;
using models::Access;
using models::Strategy;
using tests::Written;

namespace {

constexpr const char* kLlama = R"({"model_type": "llama", "hidden_size": 256, "vocab_size": 1000,
  "intermediate_size": 512, "num_hidden_layers": 2, "num_attention_heads": 4,
  "num_key_value_heads": 2, "max_position_embeddings": 512})";

// The ops that write nothing, take no memory for a moment, and say that they move or launch
// something.
std::string moving_for_nobody(const char* config, const Strategy& s) {
  const Written step(config, s, {.seq_len = 64, .micro_batch = 2});
  std::string out;
  for (std::size_t i = 0; i < step.program.ops.size(); ++i) {
    const models::Op& op = step.program.ops[i];
    const bool writes =
        std::ranges::any_of(step.program.operands_of(op), [](const models::Operand& operand) {
          return operand.access == Access::write || operand.access == Access::update;
        });
    if (writes || op.scratch > Bytes(0) || !planner::is_computed(step.program, op)) continue;
    const planner::WorkSum work = planner::rest_of_op(step.program, step.works, i);
    if (work.moved != 0 || work.kernels != 0) out += std::string(op.name) + "\n";
  }
  return out;
}

using Change = std::function<void(Strategy&)>;

constexpr const char* kGpt2 = R"({"model_type": "gpt2", "n_embd": 64, "n_head": 2, "n_layer": 2,
  "vocab_size": 1000, "n_positions": 128})";
constexpr const char* kGemma2 = R"({"model_type": "gemma2", "hidden_size": 64, "vocab_size": 1000,
  "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 2,
  "num_key_value_heads": 1, "head_dim": 32, "query_pre_attn_scalar": 32, "sliding_window": 32,
  "max_position_embeddings": 512})";
constexpr const char* kMixtral = R"({"model_type": "mixtral", "hidden_size": 64, "vocab_size": 1000,
  "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 2,
  "num_key_value_heads": 1, "num_local_experts": 4, "num_experts_per_tok": 2,
  "max_position_embeddings": 512, "sliding_window": null})";
constexpr const char* kBert = R"({"model_type": "bert", "hidden_size": 64, "vocab_size": 1000,
  "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 2,
  "max_position_embeddings": 128, "type_vocab_size": 2})";
constexpr const char* kNeoX = R"({"model_type": "gpt_neox", "hidden_size": 64, "vocab_size": 1000,
  "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 2,
  "max_position_embeddings": 128})";
constexpr const char* kFalcon = R"({"model_type": "falcon", "hidden_size": 64, "vocab_size": 1000,
  "num_hidden_layers": 2, "num_attention_heads": 2, "max_position_embeddings": 128})";
constexpr const char* kBloom = R"({"model_type": "bloom", "hidden_size": 64, "vocab_size": 1000,
  "n_layer": 2, "n_head": 2})";
constexpr const char* kQwen3 = R"({"model_type": "qwen3", "hidden_size": 64, "vocab_size": 1000,
  "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 2,
  "num_key_value_heads": 1, "head_dim": 32, "max_position_embeddings": 512})";

Change packed(const char* storage) {
  return [=](Strategy& s) {
    s.lora = models::Lora{.rank = 4, .targets = {"q_proj", "k_proj", "v_proj", "o_proj"}};
    s.param_dtype = DType::bf16;
    s.quantize =
        models::Quantization{.storage = models::find_packed_storage(storage), .kbit_prep = false};
  };
}
Change adapter(models::AdapterKind kind, bool dora = false) {
  return [=](Strategy& s) {
    s.lora = models::Lora{.kind = kind,
                          .rank = 4,
                          .targets = {"q_proj", "v_proj", "c_attn", "query", "query_key_value"},
                          .dora = dora};
    if (kind >= models::AdapterKind::prompt_tuning)
      s.lora->targets.clear(), s.lora->virtual_tokens = 8;
  };
}
Change kernels(models::Kernels of, models::Loss loss) {
  return [=](Strategy& s) { s.kernels = of, s.loss = loss; };
}
Change both(const Change& one, const Change& other) {
  return [=](Strategy& s) { one(s), other(s); };
}
Change code(models::ModelCode of) {
  return [=](Strategy& s) { s.code = of; };
}

const std::vector<std::pair<const char*, Change>>& changes() {
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
      {"flex", [](Strategy& s) { s.attention = models::Attention::flex; }},
      {"tune", both(bf16, code(models::ModelCode::torchtune_0_6_1))},
      {"titan", code(models::ModelCode::torchtitan_0_2_2)},
      {"litgpt", code(models::ModelCode::litgpt_0_5_13)}};
  return all;
}

constexpr std::array kModels{kLlama, kGpt2,   kGemma2, kMixtral, kBert,
                             kNeoX,  kFalcon, kBloom,  kQwen3};

}  // namespace

TEST_CASE("an op that makes nothing, not even for a moment, asks nothing of the GPU") {
  int written = 0;
  for (const char* config : kModels)
    for (const auto& [name, change] : changes()) {
      Strategy s;
      change(s);
      const std::string model = std::string(config).substr(15, 12);
      CAPTURE(model);
      const std::string change_name = name;
      CAPTURE(change_name);
      std::string found;
      try {
        found = moving_for_nobody(config, s);
        ++written;
      } catch (const Error&) {  // no code of it, or no adapter on it
      }
      CHECK(found == "");
    }
  CHECK(written >= 130);
}

// torch/utils/checkpoint.py, CheckpointFunction: the whole layer runs again.
TEST_CASE("a reentrant checkpoint's backward is the layer's forward again, and its backward") {
  int written = 0;
  for (const char* config : kModels)
    for (const auto& [name, change] : changes()) {
      Strategy s;
      change(s);
      // Checkpointed already, compiled to other ops, without a cache to join the prefix to; and
      // what offloading reads again in the backward is counted with what it is for.
      if (std::string_view(name) == "prefix" || s.offload.activations) continue;
      if (s.recompute.kind != models::RecomputeKind::none || s.compile != models::Compile::no)
        continue;
      const std::string model = std::string(config).substr(15, 12);
      CAPTURE(model);
      const std::string of = name;
      CAPTURE(of);
      planner::StepWork plain, again;
      try {
        plain = Written(config, s, {.seq_len = 64, .micro_batch = 2}).all();
        s.recompute.kind = models::RecomputeKind::full;
        s.use_reentrant = true;
        again = Written(config, s, {.seq_len = 64, .micro_batch = 2}).all();
      } catch (const Error&) {
        continue;
      }
      ++written;
      // With adapters the first layer's input has no gradient but in a checkpoint: the last's has.
      const bool all = !s.lora && again.layers.size() == plain.layers.size();
      for (std::size_t back = 1; back <= (all ? plain.layers.size() : 1); ++back) {
        const planner::WorkOfPart &once = plain.layers[plain.layers.size() - back],
                                  &twice = again.layers[again.layers.size() - back];
        CHECK(twice.backward.moved == once.forward.moved + once.backward.moved);
        CHECK(twice.backward.kernels == once.forward.kernels + once.backward.kernels);
        CHECK(twice.backward.casts == once.forward.casts + once.backward.casts);
        CHECK(twice.backward.gemms.size() ==
              once.forward.gemms.size() + once.backward.gemms.size());
        CHECK(twice.backward.attentions.size() ==
              once.forward.attentions.size() + once.backward.attentions.size());
      }
    }
  CHECK(written >= 100);
}
