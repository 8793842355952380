#include "tests/planner/load_checks.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>
#include <vector>

#include "models/gpu_catalog.h"
#include "models/model_catalog.h"
#include "planner/loading/loading.h"
#include "planner/loading/weights.h"
#include "tests/planner/oracle_workload.h"

using nlohmann::json;

namespace plimsoll::tests {

namespace {

struct Named {
  const char *measured, *planned;
};
constexpr Named kStages[] = {{"from_pretrained", "from_pretrained"},
                             {"kbit_prep", "prepare_model_for_kbit_training"},
                             {"adapters", "get_peft_model"},
                             {"to_device", "model.to"},
                             {"load_adapter", "PeftModel.from_pretrained"},
                             {"merge", "merge_and_unload"}};

models::ModelSpec model_of(const json& model) {
  const std::string name = model["name"];
  return model.contains("config") ? models::read_model(model["config"].dump(), name, name, {})
                                  : models::catalog_model(name);
}

planner::Question question_of(const json& run, const models::ModelSpec& model) {
  planner::Question question{.model = &model, .strategy = tests::strategy_of(run["workload"])};
  question.load = {.asked = true,
                   .device_map = run["load"]["device_map"].is_string(),
                   .packed = run["load"].value("packed", false),
                   .merges = run["load"].value("merge", false)};
  // cuBLAS's workspace, of which a load has none, is the card's.
  if (question.load.merges) question.cluster.gpu = models::find_gpu("h100-sxm-80gb");
  return question;
}

// In bytes.
struct Worst {
  std::int64_t peak = 0, resident = 0, reserved = 0;
  bool is_exact() const { return peak == 0 && resident == 0 && reserved == 0; }
  void merge(const Worst& other) {
    peak = std::max(peak, other.peak);
    resident = std::max(resident, other.resident);
    reserved = std::max(reserved, other.reserved);
  }
};

Worst difference(const reports::LoadStage& planned, const json& measured) {
  const auto off = [&](Bytes bytes, const char* key) {
    return std::abs(bytes.value() - measured[key].get<std::int64_t>());
  };
  return {off(planned.peak, "peak_bytes"), off(planned.resident, "resident_bytes"),
          off(planned.reserved, "reserved_bytes")};
}

// Of all stages.
Worst difference(const reports::Load& load, const json& stages) {
  Worst worst;
  std::size_t found = 0;
  for (const Named& stage : kStages)
    for (const reports::LoadStage& planned : load.stages)
      if (planned.name == stage.planned) {
        worst.merge(difference(planned, stages[stage.measured]));
        ++found;
      }
  CHECK(found == load.stages.size());
  return worst;
}

// Of a packed checkpoint four threads may have read a text or a mark of each weight, in a block of
// its own, when the first is made a parameter.
std::int64_t read_ahead(const planner::Question& question) {
  const auto weights = planner::loading::weights_of(*question.model, question.strategy);
  return 512 * std::ranges::count_if(weights, [](const auto& w) { return w.packed != nullptr; });
}

}  // namespace

std::string refusal_of(const planner::Question& question) {
  try {
    (void)planner::load_of(question);
  } catch (const Error& error) {
    CHECK(error.kind() == ErrorKind::unsupported);
    return error.message();
  }
  return "";
}

void check_runs(const std::string& file, std::size_t least, std::size_t refusals,
                std::int64_t reserved_percent) {
  const json document = json::parse(std::ifstream(PLIMSOLL_GOLDEN "/" + file));
  constexpr std::int64_t kBlock = 20 << 20;  // the allocator's own, of large requests
  Worst worst;
  std::size_t runs = 0, exact = 0, refused = 0;
  for (const json& run : document["runs"]) {
    const std::string name = run["case"];
    CAPTURE(name);
    const models::ModelSpec model = model_of(run["workload"]["model"]);
    const planner::Question question = question_of(run, model);
    if (!refusal_of(question).empty()) {
      ++refused;
      continue;
    }
    const Worst of_run = difference(planner::load_of(question), run["stages"]);
    INFO("peak ", of_run.peak, ", stays ", of_run.resident, ", reserved ", of_run.reserved);
    const std::int64_t reserved = run["stages"]["from_pretrained"]["reserved_bytes"];
    const std::int64_t tolerance = std::max(kBlock, reserved * reserved_percent / 100);
    if (question.load.merges && !question.load.packed)
      CHECK(of_run.is_exact());
    else if (question.load.packed)
      CHECK((of_run.peak <= read_ahead(question) && of_run.resident == 0 &&
             of_run.reserved <= kBlock));
    else if (question.load.device_map)
      CHECK((std::max(of_run.peak, of_run.resident) <= kBlock / 4 && of_run.reserved <= tolerance));
    else
      CHECK(of_run.is_exact());
    worst.merge(of_run);
    ++runs;
    exact += of_run.is_exact() ? 1 : 0;
  }
  MESSAGE(file << ": " << runs << " loads, " << exact << " to the byte; at most off: peak "
               << worst.peak << " bytes, what stays " << worst.resident << ", what is reserved "
               << worst.reserved);
  CHECK(runs >= least);
  CHECK(refused == refusals);
}

}  // namespace plimsoll::tests
