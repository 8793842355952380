#include "tests/planner/drawn_runs.h"

#include <fstream>
#include <nlohmann/json.hpp>

#include "models/model_reader.h"
#include "models/optimizers.h"
#include "planner/plan.h"
#include "tests/planner/dry_plan.h"
#include "tests/planner/oracle_workload.h"

namespace plimsoll::tests {

using nlohmann::json;

namespace {

// Every key of a workload present (tools/oracle/README.md).
json filled(const json& workload, const json& defaults) {
  if (defaults.empty()) return workload;  // dry_runs.py writes whole ones
  json out = defaults;
  out.merge_patch(workload);
  if (out["strategy"]["lora"].is_object()) {
    json lora = defaults["lora"];
    lora.merge_patch(out["strategy"]["lora"]);
    out["strategy"]["lora"] = lora;
  }
  return out;
}

std::string about(const json& workload) {
  return workload["model"]["name"].get<std::string>() + " " + workload["stack"].dump() + " " +
         workload["strategy"].dump() + " " + workload["batch"].dump();
}

// A dry run's plan is written without what a question is refused for before that.
void refuse_as_the_door_does(const json& workload, const models::ModelSpec& model) {
  planner::Question question;
  question.model = &model;
  question.strategy = strategy_of(workload);
  question.batch = batch_of(workload);
  // The oracle's workloads name one for every optimizer.
  if (models::rule_of(question.strategy.optimizer).torch.package != nullptr)
    question.strategy.optimizer_impl.reset();
  planner::plan(question);
}

}  // namespace

std::vector<DrawnRun> drawn_runs(const std::string& file) {
  const json document = json::parse(std::ifstream(file));
  const json defaults = document.value("defaults", json::object());
  std::vector<DrawnRun> out;
  for (const json& run : document["runs"]) {
    const json& workload = run["workload"];
    const std::string name = workload["model"]["name"];
    DrawnRun drawn{.name = run["case"],
                   .about = about(workload),
                   .peak = Bytes(run["peak_bytes"].get<std::int64_t>()),
                   .reserved = Bytes(run["reserved_bytes"].get<std::int64_t>())};
    try {
      const models::ModelSpec model =
          models::read_model(workload["model"]["config"].dump(), name, name, {});
      const json whole = filled(workload, defaults);
      refuse_as_the_door_does(whole, model);
      const DryPlan plan = plan_dry_run(whole, model);
      drawn.planned_peak = plan.planned.allocated;
      drawn.planned_reserved = plan.planned.reserved;
      drawn.unlucky = plan.unlucky;
    } catch (const Error& error) {
      drawn.refusal = error.message();
    }
    out.push_back(std::move(drawn));
  }
  return out;
}

}  // namespace plimsoll::tests
