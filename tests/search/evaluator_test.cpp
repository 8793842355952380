// What an evaluator keeps from one question to the next changes no answer.
#include "planner/search/evaluator.h"

#include <doctest/doctest.h>

#include <optional>
#include <string>
#include <vector>

#include "models/gpu_catalog.h"
#include "models/model_reader.h"
#include "planner/search/axes.h"

using namespace plimsoll;
using namespace plimsoll::planner;
using namespace plimsoll::planner::search;

namespace {

models::ModelSpec model_of(const char* tied) {
  return models::read_model(
      R"({"model_type": "llama", "hidden_size": 64, "intermediate_size": 96, "vocab_size": 1000,
          "num_attention_heads": 2, "num_key_value_heads": 2, "num_hidden_layers": 4,
          "max_position_embeddings": 2048, "tie_word_embeddings": )" +
          std::string(tied) + "}",
      "small", "test", {});
}

struct Asked {
  Setting setting;
  models::Batch batch;
};

// Neighbours differ in one thing alone: in the ranks that share parameters, in the batch, in what
// is recomputed.
std::vector<Asked> questions() {
  std::vector<Asked> out;
  for (const models::Stack stack : {models::Stack::pytorch, models::Stack::deepspeed})
    for (const int zero : {0, 2, 3})
      for (const auto recompute : {models::RecomputeKind::none, models::RecomputeKind::full})
        for (const auto loss : {models::Loss::full, models::Loss::fused})
          for (const models::Batch& batch :
               {models::Batch{.seq_len = 64, .micro_batch = 1},
                models::Batch{.seq_len = 64, .micro_batch = 4},
                models::Batch{.seq_len = 64, .micro_batch = 4, .grad_accum = 3},
                models::Batch{.seq_len = 128, .micro_batch = 4, .grad_accum = 2}})
            for (const std::int64_t gpus : {2, 3, 8}) {
              Asked asked{.batch = batch};
              models::Strategy& s = asked.setting.strategy;
              s.stack = stack;
              s.gpus = gpus;
              s.data.zero = zero;
              s.recompute.kind = recompute;
              s.loss = loss;
              asked.setting.batch = batch;
              out.push_back(asked);
            }
  return out;
}

}  // namespace

TEST_CASE("an evaluator that was asked before answers as one that was not") {
  for (const char* tied : {"true", "false"}) {
    const models::ModelSpec model = model_of(tied);
    Scope scope;
    scope.base.model = &model;
    scope.base.cluster.gpu = models::find_gpu("h100");
    scope.base.strategy.gpus = scope.gpus = 8;
    const Space space(scope);
    KnownSteps known;
    Evaluator alone(scope, space), shares(scope, space, &known);
    for (const Asked& asked : questions()) {
      CAPTURE(options_of(asked.setting));
      const std::optional<Need> anew = Evaluator(scope, space).need(asked.setting, asked.batch);
      REQUIRE(anew);
      for (Evaluator* const evaluator : {&alone, &shares}) {
        const std::optional<Need> need = evaluator->need(asked.setting, asked.batch);
        REQUIRE(need);
        CHECK(need->peak == anew->peak);
        CHECK(need->states == anew->states);
        CHECK(need->scratch == anew->scratch);
        CHECK(need->overhead == anew->overhead);
      }
    }
    CHECK_FALSE(known.sections.contradicted());
  }
}
