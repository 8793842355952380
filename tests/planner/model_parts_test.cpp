// A model whose parameters are not all read by a modelled op has no step: it is refused, never
// planned with the parameters counted and the rest left out.
#include "planner/model_parts.h"

#include <doctest/doctest.h>

#include "models/model_catalog.h"
#include "models/run_names.h"
#include "planner/plan.h"

using namespace plimsoll;

namespace {

// With another parameter like the first of a layer, or like the first outside of layers.
models::ModelSpec with_one_more(const char* model, const char* name, models::ModuleKind kind) {
  models::ModelSpec spec = models::catalog_model(model);
  const bool in_layer = std::string_view(name).find("{}") != std::string_view::npos;
  for (models::ParameterRow row : spec.parameters) {
    if (row.ranges.empty() == in_layer || row.tied) continue;
    row.name = name;
    row.module = kind;
    spec.parameters.push_back(row);
    return spec;
  }
  return spec;
}

void check_refused(const models::ModelSpec& model, const char* named) {
  for (const models::Stack stack :
       {models::Stack::pytorch, models::Stack::deepspeed, models::Stack::plimsoll}) {
    planner::Question question;
    question.model = &model;
    question.strategy.stack = stack;
    question.batch = {.seq_len = 128, .micro_batch = 1};
    CAPTURE(models::name_of(stack));
    try {
      planner::plan(question);
      FAIL("it was planned");
    } catch (const Error& error) {
      CHECK(error.kind() == ErrorKind::unsupported);
      CHECK(error.message().find(named) != std::string::npos);
    }
  }
}

std::vector<planner::LayerPart> layers_of(const models::ModelSpec& model,
                                          const models::Strategy& s) {
  std::vector<planner::LayerPart> layers;
  for (const planner::LayerRun& run : planner::model_parts(model, s).runs)
    for (std::int64_t i = 0; i < run.count; ++i) layers.push_back(run.layer(i));
  return layers;
}

}  // namespace

// Gemma 3's sixth layers are unlike the others; 26 of them are four patterns and two layers.
TEST_CASE("--recompute block ends a run behind its last layer, in the midst of a pattern too") {
  for (const char* name : {"llama-3.2-1b", "gemma-3-1b"}) {
    const models::ModelSpec model = models::catalog_model(name);
    models::Strategy s;
    s.recompute.kind = models::RecomputeKind::full;
    const std::vector<planner::LayerPart> layers = layers_of(model, s);
    for (std::int64_t n = 1; n <= std::ssize(layers); ++n) {
      CAPTURE(n);
      s.recompute = {models::RecomputeKind::block, n};
      std::int64_t next = 0;
      bool ends = n == std::ssize(layers);
      for (const planner::LayerRun& run : planner::model_parts(model, s).runs) {
        CHECK(run.first == next);
        CHECK(run.count % run.period() == 0);
        ends = ends || run.first == n;
        for (std::int64_t i = 0; i < run.count; ++i)
          CHECK(run.layer(i) == layers[static_cast<std::size_t>(next++)]);
      }
      CHECK(next == std::ssize(layers));
      CHECK(ends);
    }
    s.recompute = {models::RecomputeKind::block, std::ssize(layers) + 1};
    CHECK_THROWS_AS((void)planner::model_parts(model, s), Error);
  }
}

// Of a run's layers either all are checkpoints or none.
TEST_CASE("--recompute nth makes a run of each checkpoint and of what lies between two") {
  for (const char* name : {"llama-3.2-1b", "gemma-3-1b"}) {
    const models::ModelSpec model = models::catalog_model(name);
    models::Strategy s;
    s.recompute.kind = models::RecomputeKind::full;
    const std::vector<planner::LayerPart> layers = layers_of(model, s);
    for (std::int64_t n = 2; n <= std::ssize(layers); ++n) {
      CAPTURE(n);
      s.recompute = {models::RecomputeKind::nth, n};
      std::int64_t next = 0, checkpoints = 0;
      for (const planner::LayerRun& run : planner::model_parts(model, s).runs) {
        CHECK(run.first == next);
        CHECK(run.count % run.period() == 0);
        const bool is_checkpoint = (run.first + 1) % n == 0;
        checkpoints += is_checkpoint;
        CHECK((is_checkpoint ? run.count == 1 : run.first / n == (run.first + run.count - 1) / n));
        for (std::int64_t i = 0; i < run.count; ++i)
          CHECK(run.layer(i) == layers[static_cast<std::size_t>(next++)]);
      }
      CHECK(next == std::ssize(layers));
      CHECK(checkpoints == std::ssize(layers) / n);
    }
    s.recompute = {models::RecomputeKind::nth, std::ssize(layers) + 1};
    CHECK_THROWS_AS((void)planner::model_parts(model, s), Error);
  }
}

TEST_CASE("--recompute recursive makes a run of each layer") {
  for (const char* name : {"llama-3.2-1b", "gemma-3-1b"}) {
    const models::ModelSpec model = models::catalog_model(name);
    models::Strategy s;
    s.recompute.kind = models::RecomputeKind::full;
    const std::vector<planner::LayerPart> layers = layers_of(model, s);
    s.recompute = {models::RecomputeKind::recursive, 3};
    std::vector<planner::LayerPart> alone;
    for (const planner::LayerRun& run : planner::model_parts(model, s).runs) {
      CHECK(run.first == std::ssize(alone));
      CHECK(run.count == 1);
      alone.push_back(run.layer(0));
    }
    CHECK(alone == layers);
  }
}

TEST_CASE("a module that no op reads makes a model unplannable") {
  using models::ModuleKind;
  for (const char* model :
       {"gpt2", "smollm2-135m", "mistral-7b-v0.3", "qwen2.5-0.5b", "qwen3-0.6b"}) {
    CAPTURE(model);
    check_refused(
        with_one_more(model, "model.layers.{}.mlp.shared_expert_gate.weight", ModuleKind::linear),
        "mlp.shared_expert_gate");
    // As gemma2 calls a norm that Llama does not have.
    check_refused(
        with_one_more(model, "model.layers.{}.pre_feedforward_layernorm.weight", ModuleKind::norm),
        "pre_feedforward_layernorm");
    check_refused(with_one_more(model, "model.projector.weight", ModuleKind::other),
                  "model.projector");
  }
}
