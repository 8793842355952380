// What a compiled layer keeps for its backward, against what AOTAutograd's partitioner kept of the
// real one (tools/oracle/compiled_graphs.py, tests/golden/compiled_saved.json): every tensor's
// dtype and size.
#include <doctest/doctest.h>

#include <algorithm>
#include <fstream>
#include <map>
#include <set>
#include <utility>

#include "models/model_catalog.h"
#include "models/model_reader.h"
#include "planner/program/timeline.h"
#include "planner/stacks/pytorch/compiled/block_graph.h"
#include "planner/stacks/pytorch/compiled/partition.h"
#include "planner/stacks/pytorch/stack.h"
#include "tests/planner/oracle_workload.h"

using namespace plimsoll;
using nlohmann::json;
using Sizes = std::multiset<std::int64_t>;

namespace {

std::int64_t bytes_of(const json& tensor) {
  static const std::map<std::string, std::int64_t> kBytes{
      {"bfloat16", 2}, {"float16", 2}, {"float32", 4},   {"uint64", 8},
      {"int64", 8},    {"bool", 1},    {"complex64", 8}, {"float8_e4m3fn", 1}};
  std::int64_t bytes = kBytes.at(tensor[1]);
  for (const std::int64_t length : tensor[2]) bytes *= length;
  return bytes;
}

// Of a layer of the pattern of the model's first run.
planner::pytorch::Regime regime_of(const models::Strategy& strategy,
                                   const models::Decoder& decoder) {
  planner::pytorch::Regime regime =
      planner::pytorch::regime_of(strategy, strategy.data.zero >= 2, false);
  planner::pytorch::set_stream(regime, strategy, decoder);
  return regime;
}

// A layer's region, with the plan that its weights point into.
struct Compiled {
  Compiled(const models::ModelSpec& model, const models::Strategy& strategy,
           const models::Batch& batch, std::int64_t block)
      : parts(planner::model_parts(model, strategy)),
        layer(parts.runs.front().layer(block)),
        regime(regime_of(strategy, parts.decoder)),
        plan(layer, regime, regime.residual, true) {
    planner::compiled::refuse_block(*layer.block);
    region = planner::compiled::block_region(planner::compiled::region_question(
        plan, parts.decoder, regime, strategy, strategy.recompute, {batch, models::Rows::full}));
  }
  Compiled(const Compiled&) = delete;
  Compiled& operator=(const Compiled&) = delete;

  planner::ModelParts parts;
  const planner::LayerPart& layer;
  planner::pytorch::Regime regime;
  planner::pytorch::BlockPlan plan;
  planner::compiled::Region region;
};

Sizes planned_sizes(const models::ModelSpec& model, const json& workload, std::size_t block) {
  const Compiled compiled(model, tests::strategy_of(workload), tests::batch_of(workload),
                          static_cast<std::int64_t>(block));
  const planner::compiled::Region& region = compiled.region;
  Sizes sizes;
  for (const planner::compiled::NodeId id : partition(region.graph).saved)
    if (!region.graph[id].parameter) sizes.insert(region.graph[id].bytes);
  return sizes;
}

std::string text(const Sizes& sizes) {
  std::string out;
  for (const std::int64_t size : sizes) out += std::to_string(size) + " ";
  return out;
}

}  // namespace

// Families whose layers are refused by name; one that is planned fails the test, so that this list
// only shrinks.
const std::set<std::string> kRefused{"phi3", "olmo", "opt"};

TEST_CASE("a compiled layer keeps what AOTAutograd's partitioner keeps, tensor by tensor") {
  const json document = json::parse(std::ifstream(PLIMSOLL_GOLDEN "/compiled_saved.json"));
  std::set<std::string> refused;
  std::size_t compared = 0;
  for (const json& run : document["runs"]) {
    const json& workload = run["workload"];
    const std::string name = run["case"];
    CAPTURE(name);
    const models::ModelSpec model =
        models::catalog_model(workload["model"]["name"].get<std::string>());
    for (std::size_t i = 0; i < run["graphs"].size(); ++i) {
      Sizes kept, planned;
      for (const json& tensor : run["graphs"][i]) kept.insert(bytes_of(tensor));
      try {
        planned = planned_sizes(model, workload, i);
      } catch (const Error& e) {
        if (e.kind() != ErrorKind::unsupported) throw;
        refused.insert(model.model_type);
        continue;
      }
      CHECK(text(planned) == text(kept));
      ++compared;
    }
  }
  CHECK(refused == kRefused);
  CHECK(compared >= 38);
}

// In the third of four layers, by tensors that live from its forward into its backward: those that
// the partition saves, and those whose memory these take (q and k, turned where they are).
TEST_CASE("what a compiled layer saves is an activation, and nothing else of it is") {
  models::ModelSpec model = models::catalog_model("llama-3.2-1b");
  for (const auto precision : {models::Precision::bf16, models::Precision::bf16_mixed}) {
    models::Strategy strategy;
    strategy.precision = precision;
    strategy.compile = models::Compile::block;
    const planner::ModelParts parts = planner::model_parts(model, strategy);
    planner::pytorch::Rules rules;
    rules.granularity = 1;
    models::StepProgram program;
    planner::pytorch::step_writer(program, parts, strategy, {.seq_len = 256}, rules)->write();
    const planner::Timeline timeline = planner::unroll(program);
    const auto is_forward = [&](std::int64_t step) {
      return program.ops[timeline.steps[static_cast<std::size_t>(step)].at.op].phase ==
             models::Phase::forward;
    };
    std::size_t saved = 0, passing = 0;
    for (const planner::Lifetime& life : timeline.lifetimes) {
      const auto& tensor = program.tensors[static_cast<std::size_t>(life.tensor)];
      if (tensor.group == models::kNoGroup || life.instance != 2 ||
          tensor.residency != models::Residency::step || life.birth < 0 || !is_forward(life.birth))
        continue;
      const std::string name = tensor.name;
      CAPTURE(name);
      if (is_forward(life.death)) {
        ++passing;
        CHECK(tensor.category != models::Category::activations);
      } else {
        ++saved;
        CHECK(tensor.category == models::Category::activations);
      }
    }
    CHECK(saved > 5);
    CHECK(passing > 0);
  }
}

// LlamaRMSNorm multiplies its weight with what is normal (Transformers, modeling_llama.py);
// torchtitan of 2024 its RMSNorm's output with the weight (models/norms.py). A product's gradients
// are traced in the order of its factors.
TEST_CASE("a norm's product has its factors where its Python writes them") {
  const models::ModelSpec model = models::catalog_model("llama-3-8b");
  for (const auto& [code, first] : {std::pair(models::ModelCode::transformers, true),
                                    {models::ModelCode::torchtitan_2024_12, false}}) {
    models::Strategy strategy;
    strategy.code = code;
    strategy.precision = models::Precision::bf16;
    strategy.compile = models::Compile::block;
    const Compiled compiled(model, strategy, {.seq_len = 64}, 0);
    const planner::compiled::Region& region = compiled.region;
    int norms = 0;
    for (const auto& weight : region.weights) {
      if (weight.node->norm == nullptr) continue;
      const auto product = std::ranges::find_if(region.graph.nodes, [&](const auto& node) {
        return std::ranges::count(node.in, weight.input) > 0;
      });
      REQUIRE(product != region.graph.nodes.end());
      REQUIRE(product->in.size() == 2);
      CHECK((product->in.front() == weight.input) == first);
      ++norms;
    }
    CHECK(norms == 2);
  }
}
