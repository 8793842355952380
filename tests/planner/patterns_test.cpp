// Layers that alternate are stored as a pattern. Where the window is longer than the sequence, both
// kinds of layers do the same, so that the plan is that of equal layers.
#include <doctest/doctest.h>
#include <fmt/format.h>

#include "models/gpu_catalog.h"
#include "models/model_reader.h"
#include "planner/plan.h"
#include "tests/near.h"

using namespace plimsoll;

namespace {

models::ModelSpec gemma2(int layers, const std::string& more, const char* model_type = "gemma2") {
  const std::string config = fmt::format(
      R"({{"model_type":"{}","hidden_size":512,"num_attention_heads":8,"num_key_value_heads":4,)"
      R"("head_dim":64,"intermediate_size":1024,"num_hidden_layers":{},"vocab_size":4000,)"
      R"("sliding_window":512{}}})",
      model_type, layers, more);
  return models::read_model(config, "alternating", "config.json", {});
}

std::string all_full(int layers) {
  std::string types;
  for (int i = 0; i < layers; ++i) types += std::string(i > 0 ? "," : "") + "\"full_attention\"";
  return ",\"layer_types\":[" + types + "]";
}

reports::Plan plan_of(const models::ModelSpec& model, const models::Strategy& strategy,
                      std::int64_t seq_len) {
  planner::Question question;
  question.model = &model;
  question.strategy = strategy;
  question.cluster.gpu = models::find_gpu("h100-sxm-80gb");
  question.batch = {.seq_len = seq_len, .micro_batch = 2, .grad_accum = 2};
  return planner::plan(question);
}

}  // namespace

TEST_CASE("alternating layers that do the same are planned as equal layers") {
  int compared = 0;
  for (const int layers : {4, 7})
    for (const models::Stack stack : {models::Stack::pytorch, models::Stack::deepspeed})
      for (const int zero : {0, 1, 2, 3})
        for (const int version : {1, 2})
          for (const auto kind : {models::RecomputeKind::none, models::RecomputeKind::full}) {
            if (version == 1 && (stack == models::Stack::deepspeed || zero < 2)) continue;
            models::Strategy s;
            s.stack = stack;
            s.gpus = 4;
            s.data.zero = zero;
            s.data.fsdp_version = version;
            s.recompute.kind = kind;
            const models::ModelSpec alternating = gemma2(layers, "");
            const models::ModelSpec equal = gemma2(layers, all_full(layers));
            REQUIRE(alternating.blocks.size() == 2);
            REQUIRE(equal.blocks.size() == 1);
            CAPTURE(layers);
            CAPTURE(zero);
            CAPTURE(version);
            CAPTURE(static_cast<int>(stack));
            CAPTURE(static_cast<int>(kind));
            const reports::Plan a = plan_of(alternating, s, 256), b = plan_of(equal, s, 256);
            CHECK(a.peak == b.peak);
            CHECK(a.states.total() == b.states.total());
            CHECK(tests::near(a.time.step_seconds.value(), b.time.step_seconds.value(), 1e-12));
            ++compared;
          }
  CHECK(compared == 40);
}

TEST_CASE("where the sequence reaches the window, some layers are given a mask") {
  models::Strategy s;
  const models::ModelSpec alternating = gemma2(4, ""), equal = gemma2(4, all_full(4));
  CHECK(plan_of(alternating, s, 1024).peak > plan_of(equal, s, 1024).peak);
  // Without a window there is nothing to alternate with.
  CHECK(gemma2(4, R"(,"sliding_window":null)").blocks.size() == 1);
}

TEST_CASE("kinds of layers that are not known are refused") {
  CHECK_THROWS_AS(gemma2(2, R"(,"layer_types":["full_attention","chunked_attention"])"), Error);
  models::Strategy s;
  s.recompute = {models::RecomputeKind::every, 2};
  CHECK_THROWS_AS(plan_of(gemma2(4, ""), s, 256), Error);
  s.recompute = {};
  s.loss = models::Loss::fused;
  CHECK_THROWS_AS(plan_of(gemma2(4, ""), s, 256), Error);
}
