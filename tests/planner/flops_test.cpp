// Model FLOPs, by the parameter table (models/step_flops.h), against those that a stack's program
// executes: over families, recomputation, adapters and packed bases. Where the definitions agree,
// to the last one; where they do not, by what is derived here.
#include <doctest/doctest.h>

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>
#include <string>

#include "models/gpu_catalog.h"
#include "models/model_reader.h"
#include "models/recompute.h"
#include "models/run_names.h"
#include "models/step_flops.h"
#include "models/storages.h"
#include "planner/time/hardware_flops.h"
#include "tests/near.h"

using namespace plimsoll;
using models::RecomputeKind;
using models::Stack;
using models::Strategy;

namespace {

constexpr models::Batch kBatch{.seq_len = 16, .micro_batch = 2, .grad_accum = 3};
constexpr double kTokens = 16 * 2 * 3;

double hardware(const models::ModelSpec& model, const Strategy& strategy,
                const models::Batch& batch = kBatch) {
  planner::Question question;
  question.model = &model;
  question.strategy = strategy;
  question.cluster.gpu = models::find_gpu("h100-sxm-80gb");
  question.batch = batch;
  return planner::hardware_flops(question, planner::model_parts(model, strategy));
}

// With stored scores: each query is multiplied with every key, as PaLM counts it.
Strategy stored(Stack stack) {
  Strategy s;
  s.stack = stack;
  s.attention = models::Attention::eager;
  return s;
}

models::ModelSpec llama() {
  // Layers of 24: q, o 24 · 24, k, v 24 · 12, three of 24 · 40; a head of 97 · 24.
  return models::read_model(R"({"model_type": "llama", "hidden_size": 24, "vocab_size": 97,
    "intermediate_size": 40, "num_hidden_layers": 4, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 512})",
                            "llama", "llama", {});
}
constexpr double kQ = 24 * 24, kK = 24 * 12, kMlp = 24 * 40, kHead = 97 * 24;
constexpr double kLayer = 2 * kQ + 2 * kK + 3 * kMlp;
constexpr double kScores = 2 * 2 * 16 * 24;  // of one token with 16 keys, 24 wide: both products

Strategy adapters() {
  Strategy s = stored(Stack::pytorch);
  s.lora = models::Lora{.rank = 4, .targets = {"all-linear"}};
  return s;
}

}  // namespace

TEST_CASE("a step without recomputation multiplies what full attention counts, in every family") {
  std::ifstream in(PLIMSOLL_GOLDEN "/small_parameter_tables.json");
  const auto all = nlohmann::json::parse(in);
  std::set<std::string> seen;
  for (const auto& [name, entry] : all.items()) {
    const models::ModelSpec model = models::read_model(entry["config"].dump(), name, name, {});
    if (!model.decoder || (model.decoder->window > 0 && model.decoder->window < 16)) continue;
    for (const Stack stack : {Stack::pytorch, Stack::plimsoll}) {
      CAPTURE(name);
      CAPTURE(models::name_of(stack));
      const Strategy s = stored(stack);
      double found = 0;
      try {
        found = hardware(model, s);
      } catch (const Error& error) {
        REQUIRE(error.kind() == ErrorKind::unsupported);
        continue;
      }
      CHECK(found == models::step_flops(model, s, kBatch).model_full_attention());
      seen.insert(model.model_type);
    }
  }
  CHECK(seen == std::set<std::string>{"bert", "bloom", "gemma", "gemma2", "gpt2", "gpt_bigcode",
                                      "gpt_oss", "granite", "llama", "mistral", "mixtral", "olmo2",
                                      "opt", "phi3", "qwen2", "qwen3", "qwen3_moe"});
}

TEST_CASE("every rank and micro-batch has as many, however states are shared") {
  const double one = hardware(llama(), stored(Stack::pytorch));
  for (const Stack stack : {Stack::pytorch, Stack::deepspeed, Stack::plimsoll})
    for (const int zero : {0, 1, 2, 3}) {
      Strategy s = stored(stack);
      s.gpus = 4;
      s.data.zero = zero;
      CHECK(hardware(llama(), s) == 4 * one);
    }
}

TEST_CASE("fused attention multiplies whole tiles, and its backward makes the scores again") {
  const models::Batch longer{.seq_len = 256};
  Strategy s;
  const models::StepFlops model = models::step_flops(llama(), s, longer);
  // 2 + 5 products in place of 6, of 256 keys' half and half a tile of 128.
  CHECK(tests::near(hardware(llama(), s, longer),
                    model.model - model.attention + model.attention * 3.5 / 3 * (256 + 128) / 256,
                    1e-12));
}

// 1,024 tokens in tiles of 128 by 128, a token sees 256 keys, itself among them: the first row of
// tiles has one, the second two, the six others three.
TEST_CASE("a window ends a row of tiles where the kernel knows it; under a mask SDPA makes all") {
  const models::ModelSpec model = models::read_model(
      R"({"model_type": "mistral", "hidden_size": 24, "vocab_size": 97, "intermediate_size": 40,
        "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2,
        "max_position_embeddings": 2048, "sliding_window": 256})",
      "mistral", "mistral", {});
  const models::Batch batch{.seq_len = 1024};
  // Seven products of each tile, 24 wide.
  const auto attends = [&](Stack stack, models::Attention attention, const models::Batch& of) {
    Strategy s;
    s.stack = stack;
    s.attention = attention;
    const models::StepFlops table = models::step_flops(model, s, of);
    return hardware(model, s, of) - (table.model - table.attention);
  };
  constexpr double kTile = 7 * 2.0 * 128 * 128 * 24;
  using models::Attention;
  CHECK(tests::near(attends(Stack::pytorch, Attention::flash_2, batch), 4 * 21 * kTile, 1e-12));
  CHECK(tests::near(attends(Stack::plimsoll, Attention::flash, batch), 4 * 21 * kTile, 1e-12));
  CHECK(tests::near(attends(Stack::pytorch, Attention::flash, batch), 4 * 64 * kTile, 1e-12));
  // Where no token reaches the window, SDPA is given no mask: a triangle of tiles, counted along
  // the diagonal.
  const models::Batch shorter{.seq_len = 128};
  CHECK(tests::near(attends(Stack::pytorch, Attention::flash, shorter), 4 * kTile, 1e-12));
}

TEST_CASE("a checkpoint multiplies again up to the last that something keeps") {
  const double scores = 4 * kScores;
  const auto again = [&](const char* recompute, Stack stack = Stack::pytorch) {
    Strategy s = stored(stack);
    s.recompute = models::recompute_from(recompute).value();
    return (hardware(llama(), s) - hardware(llama(), stored(stack))) / kTokens;
  };
  CHECK(again("full") == 4 * (2 * (kLayer - kMlp)) + scores);
  // Of two layers in one checkpoint only the second stops before down_proj.
  CHECK(again("every:2") == 2 * (2 * (2 * kLayer - kMlp)) + scores);
  CHECK(again("sqrt") == again("every:2"));
  CHECK(4 * again("block:3") == 3 * again("full"));
  // The second product of a stored attention makes nothing that is kept.
  CHECK(again("selective") == scores / 2);
  CHECK(again("ops:gate_proj+q_proj") == 4 * (2 * (kLayer - 2 * kMlp - kQ)) + scores);
  CHECK(again("full", Stack::plimsoll) == again("full"));
  CHECK(again("block:3", Stack::plimsoll) == again("block:3"));
}

TEST_CASE("a base that is frozen has no gradient, nor has what only the embedding feeds") {
  const models::ModelSpec model = llama();
  const Strategy s = adapters();
  // Four in A and four in B: 4 (in + out).
  const double adapter = 4 * (2 * (24 + 24) + 2 * (24 + 12) + 3 * (24 + 40));
  CHECK(models::step_flops(model, s, kBatch).model_full_attention() ==
        kTokens * (4 * (4 * kLayer + kHead) + 6 * 4 * adapter + 3 * 4 * kScores));
  // Input gradients of the first layer's q, k and v, base and A (4 · 24).
  const double none = 2 * (kQ + 2 * kK) + 2 * 3 * (4 * 24);
  CHECK(models::step_flops(model, s, kBatch).model_full_attention() - hardware(model, s) ==
        kTokens * none);
}

TEST_CASE("a packed base multiplies as often as a plain one") {
  const double plain = hardware(llama(), adapters());
  for (const char* packed : {"nf4", "nf4-dq", "fp4", "int8"}) {
    CAPTURE(packed);
    Strategy s = adapters();
    s.quantize = models::Quantization{.storage = models::find_packed_storage(packed)};
    CHECK(hardware(llama(), s) == plain);
  }
}
