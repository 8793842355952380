// `--recompute fit` and `budget:SIZE`, held against trying every recomputation.
#include "planner/search/recompute_policy.h"

#include <doctest/doctest.h>

#include <algorithm>

#include "models/gpu_catalog.h"
#include "models/model_reader.h"
#include "models/recompute.h"

using namespace plimsoll;
using namespace plimsoll::planner;
using namespace plimsoll::planner::search;
using models::Recompute;
using models::RecomputeKind;

namespace {

models::ModelSpec small(const char* type) {
  return models::read_model(
      std::string(R"({"model_type": ")") + type + R"(", "hidden_size": 1024, "head_dim": 64,
          "intermediate_size": 2816, "vocab_size": 5000, "num_attention_heads": 16,
          "num_key_value_heads": 4, "num_hidden_layers": 6, "max_position_embeddings": 4096})",
      "small", "test", {});
}

Question question_of(const models::ModelSpec& model) {
  Question question;
  question.model = &model;
  question.cluster.gpu = models::find_gpu("a100-80gb");
  question.strategy.precision = models::Precision::bf16;
  question.batch = {.seq_len = 2048, .micro_batch = 2};
  question.detail = Detail::none;
  question.remedies = false;
  return question;
}

// Every subset of the names, by another count than the code under test; and checkpoints.
std::vector<Recompute> every_recompute(const std::vector<std::string>& names, std::int64_t layers) {
  std::vector<std::vector<std::string>> sets{{}};
  for (const std::string& name : names) {
    const std::size_t without = sets.size();
    for (std::size_t i = 0; i < without; ++i) {
      sets.push_back(sets[i]);
      sets.back().push_back(name);
    }
  }
  std::vector<Recompute> out{
      {RecomputeKind::none}, {RecomputeKind::selective}, {RecomputeKind::full}};
  for (std::int64_t k = 2; k <= layers; ++k) out.push_back({RecomputeKind::every, k});
  for (std::int64_t n = 1; n < layers; ++n) out.push_back({RecomputeKind::block, n});
  for (std::size_t i = 1; i < sets.size(); ++i) {
    std::ranges::sort(sets[i]);
    out.push_back({RecomputeKind::ops, 1, sets[i]});
  }
  return out;
}

struct Tried {
  Recompute recompute;
  Bytes peak;
  double seconds = 0;
};

std::vector<Tried> try_all(Question question, const std::vector<Recompute>& all) {
  std::vector<Tried> out;
  for (const Recompute& recompute : all) {
    question.strategy.recompute = recompute;
    try {
      const reports::Plan plan = planner::plan(question);
      out.push_back({recompute, plan.peak, plan.time.step_seconds.value()});
    } catch (const Error&) {  // refused
    }
  }
  return out;
}

const std::vector<std::string> kLlama{"attention", "down_proj", "gate_proj", "k_proj",
                                      "o_proj",    "q_proj",    "up_proj",   "v_proj"};

}  // namespace

TEST_CASE("no recomputation with a peak in the budget is faster than the one chosen") {
  const models::ModelSpec model = small("llama");
  const Question question = question_of(model);
  const std::vector<Tried> all = try_all(question, every_recompute(kLlama, 6));
  REQUIRE(all.size() == 3 + 5 + 5 + 255);
  const auto [least, most] = std::ranges::minmax_element(all, {}, &Tried::peak);
  int kept_ops = 0;
  for (int share = 0; share <= 10; ++share) {
    CAPTURE(share);
    const Bytes budget = least->peak + Bytes((most->peak - least->peak).value() / 10 * share);
    const PolicyChoice choice = cheapest_recompute(question, budget);
    CHECK(choice.compared == std::ssize(all));
    CHECK(choice.chosen.holds);
    CHECK(choice.chosen.peak <= budget);
    kept_ops += choice.chosen.recompute.kind == RecomputeKind::ops ? 1 : 0;
    for (const Tried& other : all) {
      CAPTURE(models::text_of(other.recompute));
      if (other.peak <= budget) CHECK(other.seconds >= choice.chosen.seconds);
    }
  }
  CHECK(kept_ops >= 5);
  CHECK(cheapest_recompute(question, most->peak).chosen.recompute.kind == RecomputeKind::none);
}

TEST_CASE("what nothing holds gets the least there is, and says so") {
  const models::ModelSpec model = small("llama");
  const Question question = question_of(model);
  const PolicyChoice choice = cheapest_recompute(question, 1_MiB);
  CHECK_FALSE(choice.chosen.holds);
  for (const PolicyCost& fixed : choice.fixed) CHECK(fixed.peak >= choice.chosen.peak);
  REQUIRE(choice.fixed.size() == 3);
  CHECK(choice.fixed[0].recompute.kind == RecomputeKind::none);
  CHECK(choice.fixed[2].recompute.kind == RecomputeKind::full);
}

TEST_CASE("what fits nowhere gets the least of the card") {
  const models::ModelSpec model = small("llama");
  Question question = question_of(model);
  question.strategy.attention = models::Attention::eager;
  question.cluster.memory = 600_MiB;
  const PolicyCost chosen = cheapest_recompute(question, {}).chosen;
  CHECK_FALSE(chosen.holds);
  int tried = 0;
  for (const Recompute& recompute : every_recompute({}, 6)) {
    CAPTURE(models::text_of(recompute));
    question.strategy.recompute = recompute;
    const reports::Plan other = planner::plan(question);
    CHECK(chosen.device <= other.device);
    ++tried;
  }
  CHECK(tried == 3 + 5 + 5);
}

TEST_CASE("fit: what the card holds, by the plan's own verdict") {
  const models::ModelSpec model = small("llama");
  Question question = question_of(model);
  const Bytes memory = planner::plan(question).device - 200_MiB;  // without recomputation
  question.cluster.memory = memory;
  const PolicyChoice choice = cheapest_recompute(question, {});
  CHECK(choice.chosen.holds);
  CHECK(choice.chosen.device <= memory);
  CHECK_FALSE(choice.fixed[0].holds);  // none: or the test would say nothing
  question.cluster = {};
  CHECK_THROWS_AS(cheapest_recompute(question, {}), Error);
}

TEST_CASE("a stack without checkpoints by operator chooses among those that it has") {
  const models::ModelSpec model = small("llama");
  Question question = question_of(model);
  question.strategy.stack = models::Stack::deepspeed;
  question.strategy.precision = models::Precision::bf16_mixed;
  const PolicyChoice choice = cheapest_recompute(question, 1_GiB);
  CHECK(choice.compared == 3 + 5 + 5);
  // Mixtures of experts have none on stack pytorch either, dense layers of Qwen 3 do.
  question.strategy.stack = models::Stack::pytorch;
  const models::ModelSpec qwen = small("qwen3");
  question.model = &qwen;
  CHECK(cheapest_recompute(question, 1_GiB).compared == 3 + 5 + 5 + 255);
}

TEST_CASE("where no recomputation can be planned, the first refusal says why") {
  const models::ModelSpec model = small("llama");
  Question question = question_of(model);
  question.strategy.compile = models::Compile::model;
  CHECK_THROWS_WITH_AS(cheapest_recompute(question, 1_GiB),
                       "--compile model (block is) is not modelled yet", Error);
}
