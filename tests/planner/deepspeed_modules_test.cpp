// ZeRO-3's trace of modules, planned against the real engine's calls of fetch_sub_module
// (tests/golden/deepspeed_modules.json, made by tools/oracle/deepspeed_modules.py).
#include <doctest/doctest.h>

#include <fstream>
#include <string>
#include <vector>

#include "planner/stacks/deepspeed/trace.h"
#include "tests/planner/oracle_deepspeed.h"

using namespace plimsoll;
using nlohmann::json;
using planner::Message;
using planner::deepspeed::Trace;

namespace {

using Words = std::vector<std::string>;

Trace planned(const json& run) {
  const models::ModelSpec model = tests::oracle_model_of(run["workload"]["model"]);
  const models::Strategy strategy = tests::deepspeed_strategy_of(run["workload"]);
  const planner::ModelParts parts = planner::model_parts(model, strategy);
  const planner::deepspeed::Engine engine = planner::deepspeed::engine_of(strategy);
  const planner::deepspeed::FlatLayout layout(parts, engine);
  return planner::deepspeed::trace_of(parts, layout, engine, strategy);
}

// "forward 256 32": elements of a module's own parameters. Either all modules of layers, or all
// that have parameters.
Words measured(const json& run, bool layers) {
  Words out;
  for (const json& step : run["steps"]) {
    if (layers ? step[2] < 0 : step[1].empty()) continue;
    std::string one = step[0];
    for (const json& parameter : step[1])
      one += " " + std::to_string(run["parameters"][parameter.get<std::size_t>()].get<int>());
    out.push_back(one);
  }
  return out;
}

Words told(const Trace& trace, bool layers) {
  Words out;
  for (const planner::deepspeed::TraceStep& step : trace.steps) {
    if (layers ? step.part != Message::Part::layer : step.begin == step.end) continue;
    std::string one = step.when == Message::When::forward ? "forward" : "backward";
    for (std::size_t use = step.begin; use < step.end; ++use)
      one += " " + std::to_string(trace.parameters[trace.uses[use]].elements);
    out.push_back(one);
  }
  return out;
}

std::string lines(const Words& words) {
  std::string out;
  for (const std::string& word : words) out += "\n  " + word;
  return out;
}

// How many modules pass their hooks between a module's own and its release: of those that have
// parameters and are released.
std::vector<int> measured_inside(const json& run) {
  std::vector<int> out;
  for (const json& step : run["steps"])
    if (!step[1].empty()) out.push_back(step[3].get<int>());
  return out;
}
std::vector<int> told_inside(const Trace& trace, const std::vector<int>& released) {
  std::vector<int> out;
  for (std::size_t s = 0; s < trace.steps.size(); ++s)
    if (trace.steps[s].begin < trace.steps[s].end)
      out.push_back(static_cast<int>(trace.steps[s].last - s));
  for (std::size_t i = 0; i < std::min(out.size(), released.size()); ++i)
    if (released[i] < 0) out[i] = -1;
  return out;
}

}  // namespace

TEST_CASE("modules use parameters in the order in which they pass the real engine's hooks") {
  const json runs = json::parse(std::ifstream(PLIMSOLL_GOLDEN "/deepspeed_modules.json"))["runs"];
  CHECK(runs.size() == 16);
  for (const json& run : runs) {
    CAPTURE(run["case"].get<std::string>());
    const Trace trace = planned(run);
    // OPT's dropouts and its activation are functions, no modules: planned as modules that use
    // none.
    const bool functions = run["case"] == "opt";
    for (const bool layers : {true, false}) {
      if (layers && functions) continue;
      INFO("planned:", lines(told(trace, layers)), "\nthe engine:", lines(measured(run, layers)));
      CHECK(told(trace, layers) == measured(run, layers));
    }
    CHECK(told_inside(trace, measured_inside(run)) == measured_inside(run));
  }
}
