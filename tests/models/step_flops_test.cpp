#include "models/step_flops.h"

#include <doctest/doctest.h>

#include "models/model_catalog.h"

using namespace plimsoll;
using models::GemmWeights;
using models::RecomputeKind;
using models::StepFlops;
using models::Strategy;

namespace {

// gpt2: 12 (768·2304 + 768² + 2·768·3072) = 84,934,656 in layers, 50257·768 = 38,597,376 in the
// head, which is tied.
constexpr double kLayers = 84'934'656, kHead = 38'597'376;
// 2·12·768·1024: scores and mixed values of the causal half, forward, for each token.
constexpr double kAttention = 18'874'368;
const models::Batch kBatch{.seq_len = 1024, .micro_batch = 2, .grad_accum = 3};

StepFlops flops(const Strategy& strategy, const char* name = "gpt2",
                const models::Batch& batch = kBatch) {
  const models::ModelSpec model = models::catalog_model(name);
  return step_flops(model, strategy, batch);
}

}  // namespace

TEST_CASE("weights in GEMMs are those of layers and head, biases and embeddings are not") {
  const auto gpt2 = gemms_of_token(models::catalog_model("gpt2"), {});
  CHECK(gpt2.layers == GemmWeights{kLayers, 0, 0});
  CHECK(gpt2.head == GemmWeights{kHead, 0, 0});
}

TEST_CASE("a step counts the tokens of all micro-batches and ranks") {
  Strategy strategy;
  strategy.gpus = 4;
  const double tokens = 1024 * 2 * 3 * 4;
  const StepFlops step = flops(strategy);
  CHECK(step.model == (6 * (kLayers + kHead) + 3 * kAttention) * tokens);
  CHECK(step.model_full_attention() == (6 * (kLayers + kHead) + 6 * kAttention) * tokens);
}

TEST_CASE("what is computed again is no model's work") {
  Strategy strategy;
  for (const RecomputeKind kind :
       {RecomputeKind::selective, RecomputeKind::full, RecomputeKind::sqrt, RecomputeKind::every}) {
    strategy.recompute.kind = kind;
    CHECK(flops(strategy).model == flops({}).model);
  }
}

TEST_CASE("frozen weights count 4, adapters 6") {
  Strategy strategy;
  strategy.lora = models::Lora{.rank = 8, .targets = {"c_attn"}};
  // 12 · 8 (768 + 2304)
  constexpr double kAdapters = 294'912;
  const auto gemms = gemms_of_token(models::catalog_model("gpt2"), strategy);
  CHECK(gemms.layers == GemmWeights{0, kLayers, kAdapters});
  CHECK(gemms.head == GemmWeights{0, kHead, 0});
  CHECK(flops(strategy).model ==
        (4 * (kLayers + kHead) + 6 * kAdapters + 3 * kAttention) * 1024 * 2 * 3);
  // A tied head is frozen and trained with the embedding.
  Strategy tied;
  tied.freeze = {"transformer.wte.weight"};
  CHECK(gemms_of_token(models::catalog_model("gpt2"), tied).head == GemmWeights{0, kHead, 0});
}

TEST_CASE("a layer that is frozen alone counts 4, and an untied head stands by itself") {
  Strategy strategy;
  strategy.freeze = {"model.layers.0.*", "lm_head.weight"};
  const auto gemms = gemms_of_token(models::catalog_model("llama-3.1-8b"), strategy);
  // 4096 (2·4096 + 2·1024 + 3·14336) = 218,103,808 a layer; 128256·4096 in the head.
  CHECK(gemms.layers == GemmWeights{31 * 218'103'808., 218'103'808, 0});
  CHECK(gemms.head == GemmWeights{0, 525'336'576, 0});
}

TEST_CASE("a sliding window ends what a token sees") {
  models::Batch longer{.seq_len = 8192, .micro_batch = 1, .grad_accum = 1};
  const models::ModelSpec model = models::catalog_model("mistral-7b-v0.1");
  REQUIRE(model.decoder->window == 4096);
  // 3·2·32·4096·4096 a token, and not ·8192.
  CHECK(flops({}, "mistral-7b-v0.1", longer).attention == 3. * 2 * 32 * 4096 * 4096 * 8192);
}
