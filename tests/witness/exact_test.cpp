// L1: requested bytes of every tensor at every op boundary of every rank, planned and measured.
// L2: what each rank's arena has reserved, and what a replay of the plan reserves.
#include <doctest/doctest.h>

#include "models/decisions/workspace.h"
#include "models/storages.h"
#include "planner/memory/arena_replay.h"
#include "tests/witness/covering.h"
#include "tests/witness/drawn.h"

namespace plimsoll::witness {
namespace {

void check_exact(const Case& c) {
  CAPTURE(text(c));
  CHECK(difference_of(c) == "");
}

Case base(const char* model, std::int64_t ranks = 1, int zero = 0) {
  Case c;
  c.model = model;
  c.strategy.stack = models::Stack::plimsoll;
  c.strategy.device = models::Device::cpu;
  c.strategy.precision = models::Precision::fp32;
  c.strategy.gpus = ranks;
  c.strategy.data.zero = zero;
  c.batch = {.seq_len = 16, .micro_batch = 2};
  return c;
}

TEST_CASE("one rank") {
  for (const char* model : {"llama", "gpt2", "qwen3", "gpt2-dropout"}) check_exact(base(model));
}

TEST_CASE("stages of ZeRO on three ranks") {
  for (const char* model : {"llama", "gpt2", "qwen3"})
    for (const int zero : {0, 1, 2, 3}) check_exact(base(model, 3, zero));
}

// 128 · 160 values are 320 blocks, whose scales have two of their own; a shard begins inside codes
// and inside scales.
TEST_CASE("packed bases whose scales fill blocks of their own, under every stage") {
  for (const char* storage : {"nf4", "nf4-dq", "int8", "int8-affine"})
    for (const int zero : {0, 1, 2, 3}) {
      Case c = base("llama", 4, zero);
      c.config = R"({"model_type": "llama", "hidden_size": 128, "num_attention_heads": 2,
          "num_key_value_heads": 1, "head_dim": 64, "intermediate_size": 160, "vocab_size": 67,
          "num_hidden_layers": 2, "max_position_embeddings": 64})";
      c.strategy.precision = models::Precision::bf16_mixed;
      c.strategy.lora = models::Lora{.rank = 3, .alpha = 6, .targets = {"all-linear"}};
      c.strategy.quantize = {.storage = models::find_packed_storage(storage)};
      check_exact(c);
    }
}

// Widths of 16 and of 24: GEMMs in 8 bits beside one that is not; weights stored either way, biases
// (trained or not), parallel residuals, norms between, everything made again.
TEST_CASE("linears in 8 bits under every stage") {
  const std::pair<const char*, std::vector<std::string>> models[] = {
      {R"({"model_type": "llama", "hidden_size": 32, "num_attention_heads": 2,
            "num_key_value_heads": 1, "head_dim": 16, "intermediate_size": 48, "vocab_size": 67,
            "num_hidden_layers": 2, "max_position_embeddings": 64, "mlp_bias": true})",
       {"*.bias", "*down_proj.weight", "*q_proj.weight"}},
      {R"({"model_type": "qwen3", "hidden_size": 24, "num_attention_heads": 2,
            "num_key_value_heads": 1, "head_dim": 16, "intermediate_size": 32, "vocab_size": 67,
            "num_hidden_layers": 2, "max_position_embeddings": 64})",
       {"*up_proj.weight", "*down_proj.weight", "*o_proj.weight"}},
      {R"({"model_type": "gpt2", "n_embd": 32, "n_head": 2, "n_layer": 2, "vocab_size": 67,
            "n_positions": 64})",
       {"*attn.c_proj.weight", "*mlp.c_proj.weight", "*ln_2*"}},
      {R"({"model_type": "phi", "hidden_size": 32, "num_attention_heads": 2,
            "intermediate_size": 64, "vocab_size": 67, "num_hidden_layers": 2,
            "max_position_embeddings": 64})",
       {"*.bias", "*fc2.weight", "*q_proj.weight"}}};
  for (const auto& [config, frozen] : models)
    for (const int zero : {0, 1, 2, 3})
      for (const models::RecomputeKind kind :
           {models::RecomputeKind::none, models::RecomputeKind::selective,
            models::RecomputeKind::full}) {
        Case c = base("llama", 3, zero);
        c.config = config;
        c.strategy.precision = models::Precision::fp8_mixed;
        c.strategy.recompute = {kind, 1};
        check_exact(c);
        c.strategy.freeze = frozen;
        check_exact(c);
      }
}

// Nine layers, so that inputs are held, let go and held again, and that what is gathered ahead is
// another layer's each time; with frozen layers below, which are not reversed.
TEST_CASE("layers that are run again recursively, under every stage") {
  const std::pair<const char*, std::vector<std::string>> models[] = {
      {R"({"model_type": "llama", "hidden_size": 16, "num_attention_heads": 2,
            "num_key_value_heads": 1, "head_dim": 8, "intermediate_size": 24, "vocab_size": 67,
            "num_hidden_layers": 9, "max_position_embeddings": 64})",
       {"model.embed_tokens.*", "model.layers.0.*", "model.layers.1.*", "model.layers.2.[imps]*"}},
      {R"({"model_type": "gpt2", "n_embd": 16, "n_head": 2, "n_layer": 9, "vocab_size": 67,
            "n_positions": 64})",
       {"transformer.w*", "transformer.h.0.*"}},
      {R"({"model_type": "gemma3_text", "hidden_size": 16, "num_attention_heads": 2,
            "num_key_value_heads": 1, "head_dim": 8, "intermediate_size": 24, "vocab_size": 67,
            "num_hidden_layers": 9, "sliding_window_pattern": 3, "sliding_window": 8,
            "max_position_embeddings": 64})",
       {"model.embed_tokens.*"}}};
  for (const auto& [config, frozen] : models)
    for (const int zero : {0, 1, 2, 3})
      for (const std::int64_t held : {1, 2, 3, 8, 9, 12}) {
        Case c = base("llama", 3, zero);
        c.config = config;
        c.strategy.precision = models::Precision::bf16_mixed;
        c.strategy.recompute = {models::RecomputeKind::recursive, held};
        c.batch.grad_accum = 2;
        check_exact(c);
        c.strategy.freeze = frozen;
        check_exact(c);
      }
}

// Of all, of adapters in fp32 under a 16-bit base, and of both; four ranks in one group and in two.
TEST_CASE(
    "gradients that are cast for the exchange, under every stage, accumulated and in groups") {
  for (const char* model : {"llama", "gpt2"})  // gpt2's table is tied to the head
    for (const int zero : {0, 1, 2, 3})
      for (const std::int64_t group : {0, 2})
        for (const std::int64_t accum : {1, 4})
          for (const bool deterministic : {false, true}) {
            if (group > 0 && zero == 0) continue;
            Case c = base(model, 4, zero);
            c.poison = accum == 1;
            c.deterministic = deterministic;
            c.strategy.data.shard_group = group;
            c.strategy.data.bucket_cap = Bytes(1000);
            c.strategy.data.reduce_dtype = DType::bf16;
            c.batch = {.seq_len = 6, .micro_batch = 1, .grad_accum = accum};
            check_exact(c);
            c.strategy.optimizer_in_backward = accum == 1;
            c.strategy.precision = models::Precision::bf16_mixed;
            c.strategy.lora = models::Lora{.rank = 3, .alpha = 6, .targets = {"all-linear"}};
            check_exact(c);
            c.strategy.train = {model == std::string("gpt2") ? "*ln_*" : "*norm*"};
            check_exact(c);
          }
}

TEST_CASE("drawn workloads in 8 bits") {
  for (const Case& c : planned_in_float8(12)) check_exact(c);
}

TEST_CASE("a step that an overflow cuts short takes the same memory") {
  Case c = base("llama", 3, 2);
  c.strategy.precision = models::Precision::fp16_mixed;
  c.loss_scale = 1e30;
  const Predicted plan = predicted(c);
  for (const auto& steps : measured(c).ranks) {
    CHECK(steps[0].skipped);
    CHECK(first_difference(plan, steps[0].memory) == "");
  }
}

TEST_CASE("two hundred workloads in which every two settings occur together") {
  for (const Case& c : covering(200, 1)) check_exact(c);
}

// So that L2 is no second name of L1: of the 200 workloads some leave holes in the arena.
TEST_CASE("what is reserved is more than the blocks that live at once") {
  int with_holes = 0;
  for (const Case& c : covering(200, 1)) {
    const Predicted plan = predicted(c, models::decisions::kBlock);
    const Bytes blocks = plan.timeline.steps[plan.timeline.peak_step].high_water;
    const Bytes reserved = planner::arena_reserved(plan.program, plan.timeline);
    CHECK(reserved >= blocks);
    if (reserved > blocks) ++with_holes;
  }
  CHECK(with_holes > 100);
}

}  // namespace
}  // namespace plimsoll::witness
