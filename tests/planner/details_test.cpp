// The timeline and the tensors of a plan: laws that tie the complete ones to each other, and the
// abridged to the complete.
#include "planner/details.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <string>

#include "models/gpu_catalog.h"
#include "models/model_reader.h"
#include "planner/plan.h"
#include "planner/stack_step.h"

using namespace plimsoll;
using planner::Detail;
using reports::Plan;
using reports::TensorLine;
using reports::TimelinePoint;

namespace {

constexpr auto kTemporaries = static_cast<std::size_t>(models::Category::temporaries);

models::ModelSpec llama(int layers) {
  return models::read_model(R"({"model_type": "llama", "hidden_size": 24, "vocab_size": 97,
    "intermediate_size": 40, "num_attention_heads": 4, "num_key_value_heads": 2,
    "max_position_embeddings": 512, "num_hidden_layers": )" +
                                std::to_string(layers) + "}",
                            "llama", "llama", {});
}

Plan plan_of(const models::ModelSpec& model, const models::Strategy& s, Detail detail) {
  planner::Question question;
  question.model = &model;
  question.strategy = s;
  question.cluster.gpu = models::find_gpu("h100-sxm-80gb");
  question.batch = {.seq_len = 16, .micro_batch = 2};
  question.detail = detail;
  return planner::plan(question);
}

std::vector<models::Strategy> strategies() {
  std::vector<models::Strategy> all(4);
  all[1].recompute.kind = models::RecomputeKind::full;
  all[2].stack = models::Stack::plimsoll;
  all[3].gpus = 4;
  all[3].data.zero = 3;
  return all;
}

Bytes sum_of(const reports::ByCategory& parts) {
  return std::accumulate(parts.begin(), parts.end(), Bytes(0));
}

std::size_t highest(const Plan& plan) {
  const auto found = std::ranges::max_element(plan.timeline, {}, &TimelinePoint::high_water);
  return static_cast<std::size_t>(found - plan.timeline.begin());
}

// "layers.2.self_attn.q" is of "layers.2"; ops outside layers are of themselves.
std::string block_of(const std::string& op) {
  return op.starts_with("layers.") ? op.substr(0, op.find('.', 7)) : op;
}

}  // namespace

TEST_CASE("every point of a timeline is the sum of its categories, and the highest is the peak") {
  const models::ModelSpec model = llama(4);
  for (const models::Strategy& s : strategies())
    for (const Detail detail : {Detail::abridged, Detail::full}) {
      const Plan plan = plan_of(model, s, detail);
      REQUIRE_FALSE(plan.timeline.empty());
      for (const TimelinePoint& point : plan.timeline) {
        CHECK(sum_of(point.by_category) == point.high_water);
        CHECK(point.allocated <= point.high_water);
      }
      const TimelinePoint& top = plan.timeline[highest(plan)];
      CHECK(top.high_water == plan.peak);
      CHECK(top.by_category == plan.at_peak);
      CHECK(top.phase == plan.peak_place.phase);
      CHECK((detail == Detail::full ? top.op : block_of(top.op)) ==
            (detail == Detail::full ? plan.peak_place.where : block_of(plan.peak_place.where)));
      CHECK(plan.timeline.back().allocated == plan.resident);
    }
}

TEST_CASE("the abridged timeline has a point for each layer of a phase: its highest op's") {
  const models::ModelSpec model = llama(4);
  for (const models::Strategy& s : strategies()) {
    const Plan full = plan_of(model, s, Detail::full), plan = plan_of(model, s, Detail::abridged);
    std::vector<TimelinePoint> blocks;
    for (const TimelinePoint& point : full.timeline) {
      const std::string block = block_of(point.op);
      const bool same = !blocks.empty() && blocks.back().op == block &&
                        blocks.back().phase == point.phase && block != point.op;
      if (!same) {
        blocks.push_back(point);
        blocks.back().op = block;
        continue;
      }
      TimelinePoint& last = blocks.back();
      last.allocated = point.allocated;
      if (point.high_water < last.high_water) continue;
      last.high_water = point.high_water;
      last.by_category = point.by_category;
    }
    REQUIRE(blocks.size() == plan.timeline.size());
    for (std::size_t i = 0; i < blocks.size(); ++i) {
      CAPTURE(blocks[i].op);
      CHECK(plan.timeline[i].op == blocks[i].op);
      CHECK(std::string(plan.timeline[i].phase) == blocks[i].phase);
      CHECK(plan.timeline[i].allocated == blocks[i].allocated);
      CHECK(plan.timeline[i].high_water == blocks[i].high_water);
      CHECK(plan.timeline[i].by_category == blocks[i].by_category);
    }
  }
}

TEST_CASE("a tensor is there at the peak when it was born before and dies behind it") {
  const models::ModelSpec model = llama(4);
  for (const models::Strategy& s : strategies()) {
    const Plan plan = plan_of(model, s, Detail::full);
    const auto peak = static_cast<std::int64_t>(highest(plan));
    const auto steps = static_cast<std::int64_t>(plan.timeline.size());
    Bytes all;
    for (const TensorLine& line : plan.tensors) {
      CAPTURE(line.name);
      CHECK(line.repeat == 1);
      if (line.born_op) {
        CHECK(line.at_peak == (*line.born_op <= peak && *line.dies_op >= peak));
        CHECK(*line.born_op <= *line.dies_op);
        if (*line.born_op < 0)
          CHECK(line.born == "before the step");
        else
          CHECK(line.born.ends_with(plan.timeline[static_cast<std::size_t>(*line.born_op)].op));
        if (*line.dies_op >= steps)
          CHECK(line.dies == "never");
        else
          CHECK(line.dies.ends_with(plan.timeline[static_cast<std::size_t>(*line.dies_op)].op));
      }
      if (line.at_peak) all += line.bytes;
    }
    // What is left is the op's own scratch.
    CHECK(all <= plan.peak);
    CHECK(all + plan.at_peak[kTemporaries] +
              plan.at_peak[static_cast<std::size_t>(models::Category::workspace)] >=
          plan.peak);
  }
}

TEST_CASE("equal tensors of layers are one line, as often as there are layers") {
  const models::ModelSpec model = llama(4);
  for (const models::Strategy& s : strategies()) {
    const Plan full = plan_of(model, s, Detail::full), plan = plan_of(model, s, Detail::abridged);
    const auto bytes = [](const Plan& of) {
      Bytes all;
      for (const TensorLine& line : of.tensors) all += line.bytes * line.repeat;
      return all;
    };
    CHECK(bytes(plan) == bytes(full));
    std::int64_t lines = 0;
    bool folded = false;
    for (const TensorLine& line : plan.tensors) {
      CAPTURE(line.name);
      CHECK((line.repeat > 1) == (line.name.find(".*.") != std::string::npos));
      CHECK_FALSE(line.born_op.has_value());
      folded = folded || line.repeat == 4;
      lines += line.repeat;
      // One that is there at the peak in any layer is said to be.
      const auto there = [&](const TensorLine& other) {
        const std::size_t star = line.name.find('*');
        const bool named = star == std::string::npos
                               ? other.name == line.name
                               : other.name.starts_with(line.name.substr(0, star)) &&
                                     other.name.ends_with(line.name.substr(star + 1));
        return named && other.at_peak;
      };
      if (line.at_peak) CHECK(std::ranges::any_of(full.tensors, there));
    }
    CHECK(folded);
    CHECK(lines == std::ssize(full.tensors));
  }
}

// Three points a layer (forward, backward, optimizer): neighbours are joined until at most 2,000
// are left.
TEST_CASE("a timeline of very many layers keeps the higher one of neighbours") {
  const auto points = [](int layers) {
    const models::ModelSpec model = llama(layers);
    planner::Question question;
    question.model = &model;
    question.strategy.stack = models::Stack::plimsoll;
    question.batch = {.seq_len = 16, .micro_batch = 2};
    planner::StackStep step;
    step.program_only = true;
    planner::write_step(question, planner::model_parts(model, question.strategy), step);
    const planner::Timeline timeline = planner::unroll(step.program);
    Plan plan;
    planner::add_details(step.program, timeline, Detail::none, plan);
    CHECK(plan.timeline.empty());
    planner::add_details(step.program, timeline, Detail::abridged, plan);
    CHECK(plan.timeline[highest(plan)].high_water == timeline.steps[timeline.peak_step].high_water);
    return plan.timeline.size();
  };
  const std::size_t all = points(600);
  CHECK(all > 1800);
  CHECK(all <= 2000);
  // 100 layers more are 300 points more, and of all half are left.
  CHECK(points(700) == (all + 300 + 1) / 2);
}
