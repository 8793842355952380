// The planned step of stack pytorch against what PyTorch's allocator really did, op by op.
//
// Each file of tests/golden/traces and tests/golden/pytorch_steps is the allocation history of a
// real training step (torch's own caching allocator; tools/oracle/README.md says how, and the files
// hold the workload that makes them again). Predicted and measured are requested bytes.
#include <doctest/doctest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <string>

#include "models/model_reader.h"
#include "planner/program/peak.h"
#include "planner/program/timeline.h"
#include "planner/stacks/pytorch/stack.h"
#include "tests/planner/oracle_workload.h"
#include "tests/planner/trace_history.h"
#include "tests/planner/well_formed.h"

using namespace plimsoll;
using nlohmann::json;
using tests::History;
using tests::history_of;

namespace {

planner::pytorch::Rules rules_of(const json& trace) {
  const json& stack = trace["workload"]["stack"];
  planner::pytorch::Rules rules;
  rules.granularity = 1;  // requested bytes
  // One tensor is input_ids and labels, beside a mask or positions.
  rules.batch_tensors = trace["workload"]["strategy"].contains("rows") ? 2 : 1;
  using planner::pytorch::FsdpUnits;
  rules.fsdp_units = stack["fsdp_units"] == "layers"       ? FsdpUnits::root
                     : stack["fsdp_units"] == "accelerate" ? FsdpUnits::accelerate
                                                           : FsdpUnits::ends;
  rules.fsdp_autocast = stack["fsdp_autocast"];
  rules.hold_outputs = stack["hold_outputs"];
  rules.rank = 0;
  if (trace["workload"]["strategy"]["attention"] == "xformers")  // a T4's
    rules.gpu = {.major = 7, .minor = 5, .count = 40, .threads = 1024, .grouped = 0};
  const json& release = stack["transformers_version"];
  rules.checks_packing =
      !stack["use_cache"].get<bool>() &&
      (!release.is_string() ||
       models::release_from(release.get<std::string>()) >= models::Release{4, 53, 0});
  // DoRA multiplies as it is built, before operators are recorded.
  constexpr std::int64_t kBlasWorkspace = 32 << 20;
  for (const json& row : trace["initial"]) {
    const std::int64_t bytes = row[1];
    if (row[4].get<std::string>().starts_with("scratch kept") ||
        (row[4] == "other" && bytes == kBlasWorkspace))
      rules.blas.forward += Bytes(bytes);
  }
  return rules;
}

struct Planned {
  models::StepProgram program;
  reports::States states;
};

Planned planned_program(const json& trace, const std::string& name) {
  const json& workload = trace["workload"];
  const models::ModelSpec model =
      models::read_model(workload["model"]["config"].dump(), name, name, {});
  const models::Strategy strategy = tests::strategy_of(workload);
  const planner::ModelParts parts = planner::model_parts(model, strategy);
  Planned planned;
  const auto writer = planner::pytorch::step_writer(planned.program, parts, strategy,
                                                    tests::batch_of(workload), rules_of(trace));
  writer->write();
  CHECK(tests::ill_formed(planned.program) == "");
  planned.states = writer->states();
  return planned;
}

// The comparison ----------------------------------------------------------------------------------

// Scalars that a loop keeps beside the model: the loss divided by the micro-batches, GradScaler's
// scale and its inverse.
constexpr std::int64_t kScalars = 16;

// What a few ops need for a moment and the planner leaves out: pointer tables of FSDP2's copy
// kernels (a few KiB), and cub's scratch for one running sum.
constexpr std::int64_t kPointerTables = 8192;
std::int64_t unplanned(const models::StepProgram& program, const planner::Moment& moment) {
  const std::string_view op = program.ops[moment.at.op].name;
  return op.starts_with("fsdp.")                                    ? kPointerTables
         : op == "attention_mask.packing" || op == "loss.scattered" ? 2048
                                                                    : kScalars;
}

bool near(std::int64_t a, std::int64_t b, std::int64_t tolerance = kScalars) {
  return std::abs(a - b) <= tolerance;
}

// Walks the planned ops and the history side by side: the level after each op must come up in the
// history, in order, where memory is about to grow again, and between two such places the history
// must go exactly as high as the planned op does. Ops that only let go belong to the op before
// them. An op may pass its own level in the middle: every place that fits is followed. Returns the
// first op that fits nowhere, or nothing.
std::string first_difference(const models::StepProgram& program, const planner::Timeline& timeline,
                             const History& history) {
  const std::vector<std::int64_t>& level = history.level;
  const auto grows_after = [&](std::size_t i) {
    return i + 1 == level.size() || level[i + 1] > level[i];
  };
  std::set<std::size_t> places{0};  // the first event that is not accounted for
  for (std::size_t i = 0; i < timeline.steps.size();) {
    const planner::Moment& moment = timeline.steps[i];
    const std::int64_t high = moment.high_water.value();
    std::int64_t after = moment.after.value();
    while (++i < timeline.steps.size() && timeline.steps[i].high_water.value() <= after)
      after = timeline.steps[i].after.value();
    const std::int64_t tolerance = unplanned(program, moment);
    std::set<std::size_t> next;
    for (const std::size_t at : places) {
      std::int64_t highest = at == 0 ? history.resident : level[at - 1];
      if (near(highest, after) && high <= highest + tolerance) {
        next.insert(at);
        continue;
      }
      for (std::size_t found = at; found < level.size(); ++found) {
        highest = std::max(highest, level[found]);
        if (highest > high + tolerance) break;
        if (near(level[found], after) && near(highest, high, tolerance) && grows_after(found))
          next.insert(found + 1);
      }
    }
    if (next.empty())
      return planner::name_of_op(program, moment.at) + ": planned to reach " +
             std::to_string(high - history.resident) + " and leave " +
             std::to_string(after - history.resident) + " above what is resident";
    places = std::move(next);
  }
  return {};
}

std::string phase_differences(const models::StepProgram& program, const planner::Timeline& timeline,
                              const History& history, std::int64_t of_sharded = kPointerTables,
                              std::int64_t tolerance = kScalars) {
  std::array<std::int64_t, 3> planned{}, measured{}, planned_end{}, measured_end{};
  bool sharded = false;
  for (const planner::Moment& moment : timeline.steps) {
    const models::Op& op = program.ops[moment.at.op];
    const std::size_t i = op.phase == models::Phase::forward     ? 0
                          : op.phase == models::Phase::optimizer ? 2
                                                                 : 1;
    planned[i] = std::max(planned[i], moment.high_water.value());
    planned_end[i] = moment.after.value();
    sharded = sharded || std::string_view(op.name).starts_with("fsdp.");
  }
  std::int64_t now = history.resident;
  for (std::size_t e = 0; e < history.level.size(); ++e) {
    const auto i = static_cast<std::size_t>(history.phase[e]);
    measured[i] = std::max({measured[i], now, history.level[e]});
    now = measured_end[i] = history.level[e];
  }
  std::string out;
  for (std::size_t i = 0; i < 3; ++i)
    if (!near(planned[i], measured[i], sharded ? of_sharded : tolerance) ||
        !near(planned_end[i], measured_end[i], tolerance))
      out += " phase " + std::to_string(i) + ": peak " + std::to_string(planned[i] - measured[i]) +
             ", end " + std::to_string(planned_end[i] - measured_end[i]);
  return out;
}

// What differs, or nothing.
std::string differences(const json& trace, const std::string& name) {
  Planned planned;
  try {
    planned = planned_program(trace, name);
  } catch (const Error& error) {
    CHECK(error.kind() == ErrorKind::unsupported);
    return std::string("refused: ") + error.what();
  }
  const planner::Timeline timeline = planner::unroll(planned.program);
  const planner::Peak peak = planner::PeakFinder().find(planned.program);
  CHECK(peak.bytes == timeline.steps[timeline.peak_step].high_water);
  const History history = history_of(trace);
  if (!near(peak.resident.value(), history.resident))
    return "resident by " + std::to_string(peak.resident.value() - history.resident);
  return first_difference(planned.program, timeline, history) +
         phase_differences(planned.program, timeline, history);
}

// Of an older release, which orders a layer in another way: what each phase reaches and leaves.
std::string differences_by_phase(const json& trace, const std::string& name,
                                 std::int64_t tolerance = kPointerTables) {
  const Planned planned = planned_program(trace, name);
  return phase_differences(planned.program, planner::unroll(planned.program), history_of(trace),
                           tolerance);
}

std::set<std::string> listed(const char* file) {
  std::set<std::string> names;
  std::ifstream in(file);
  for (std::string line; std::getline(in, line);)
    if (!line.empty() && line[0] != '#') names.insert(line.substr(0, line.find(' ')));
  return names;
}

}  // namespace

TEST_CASE("every op of the planned step leaves and reaches what PyTorch's allocator saw") {
  // Steps that do not yet fit stand in known_differences.txt with the reason; an entry that has
  // become exact fails too, so that the list only shrinks.
  const std::set<std::string> differing = listed(PLIMSOLL_GOLDEN "/traces/known_differences.txt");
  const std::set<std::string> modelled{"bert",  "bloom",       "gemma",    "gemma2",  "gemma3_text",
                                       "gpt2",  "gpt_bigcode", "gpt_neox", "gpt_oss", "granite",
                                       "llama", "mistral",     "mixtral",  "olmo2",   "opt",
                                       "phi",   "phi3",        "qwen2",    "qwen3",   "qwen3_moe"};
  int exact = 0, others = 0;
  for (const char* folder : {"/traces", "/pytorch_steps"}) {
    for (const auto& entry :
         std::filesystem::directory_iterator(PLIMSOLL_GOLDEN + std::string(folder))) {
      if (entry.path().extension() != ".json") continue;
      const std::string name = entry.path().stem();
      const json trace = json::parse(std::ifstream(entry.path()));
      if (!modelled.contains(trace["workload"]["model"]["config"]["model_type"])) {
        ++others;  // families whose step programs are not written yet are refused by name
        continue;
      }
      CAPTURE(name);
      const std::string difference = differences(trace, name);
      CAPTURE(difference);
      CHECK(difference.empty() != differing.contains(name));
      exact += difference.empty() ? 1 : 0;
    }
  }
  MESSAGE(exact << " steps planned exactly, " << differing.size() << " known to differ, " << others
                << " of families without a step program");
  CHECK(exact >= 145);
}

TEST_CASE("checkpoints around FSDP1's units, adapters: each phase reaches what was seen") {
  for (const char* name :
       {"llama-a-fsdp1-t448-full", "llama-a-fsdp1-t448-bf16-full-accum2",
        "llama-a-fsdp1-t448-zero2-full", "llama-a-fsdp1-t457-full", "llama-a-fsdp1-t448-lora-full",
        "llama-a-fsdp1-t457-lora-full", "llama-a-fsdp1-lora-all-full"}) {
    CAPTURE(name);
    const std::string path = PLIMSOLL_GOLDEN "/pytorch_steps/" + std::string(name) + ".json";
    const json trace = json::parse(std::ifstream(path));
    // Twice the largest adapter is planned where two of them are gathered.
    const bool adapters = trace["workload"]["strategy"]["lora"].is_object();
    const std::string difference =
        differences_by_phase(trace, name, adapters ? 2 * 22'528 : kPointerTables);
    CAPTURE(difference);
    CHECK(difference.empty());
  }
}

// Unsloth's checkpoints on the host: the last layer's input, which stays on the device, is one more
// tensor of the program, behind the layers.
TEST_CASE("Unsloth's offloaded checkpoints: each phase reaches and leaves what was seen") {
  for (const char* name :
       {"llama-a-unsloth-nf4-dq-offload", "llama-a-unsloth-xformers-nf4-dq-offload"}) {
    CAPTURE(name);
    const std::string path = PLIMSOLL_GOLDEN "/traces/" + std::string(name) + ".json";
    const json trace = json::parse(std::ifstream(path));
    const std::string difference = differences_by_phase(trace, name, kScalars);
    CHECK_MESSAGE(difference.empty(), difference);
  }
}

// Hooks that take what every node saves (offloading_layers.cpp). The first layer's rotary tables
// are copied, and later ones' stay: what happens inside that layer is not held op by op.
TEST_CASE(
    "activations on the host without checkpoints: each phase reaches and leaves what was seen") {
  int steps = 0;
  for (const auto& entry :
       std::filesystem::directory_iterator(PLIMSOLL_GOLDEN "/offloaded_steps")) {
    if (entry.path().extension() != ".json") continue;
    const std::string name = entry.path().stem();
    CAPTURE(name);
    const json trace = json::parse(std::ifstream(entry.path()));
    // A copy of o_proj's weight for each of two layers, which the hooks take for another tensor.
    const json& config = trace["workload"]["model"]["config"];
    const std::int64_t hidden = config["hidden_size"];
    const bool mixed = trace["workload"]["strategy"]["precision"] == "bf16-mixed" &&
                       trace["workload"]["strategy"]["lora"].is_null();
    const std::int64_t tolerance = mixed ? 2 * 2 * hidden * hidden : kScalars;
    const Planned planned = planned_program(trace, name);
    const History history = history_of(trace);
    const std::string difference = phase_differences(
        planned.program, planner::unroll(planned.program), history, kPointerTables, tolerance);
    CAPTURE(difference);
    CHECK(difference.empty());
    ++steps;
  }
  CHECK(steps == 13);
}

// fms-acceleration's adapters of a packed base, in one function with its GEMMs.
TEST_CASE("fused adapters of a packed base: each phase reaches and leaves what was seen") {
  for (const char* name :
       {"llama-a-fms-lora", "llama-a-fms-gptq", "llama-a-fms-gptq-dropout",
        "llama-a-fms-gptq-dropout-full", "llama-a-fms-gptq-dropout-full-reentrant",
        "llama-a-fms-nf4-dq", "llama-a-fms-nf4-dq-dropout", "llama-a-fms-nf4-dq-dropout-full",
        "llama-a-fms-nf4-dq-dropout-full-reentrant"}) {
    CAPTURE(name);
    const std::string path = PLIMSOLL_GOLDEN "/traces/" + std::string(name) + ".json";
    const std::string difference =
        differences_by_phase(json::parse(std::ifstream(path)), name, kScalars);
    CAPTURE(difference);
    CHECK(difference.empty());
  }
}
