#include "tests/fuzz/targets.h"

#include <array>
#include <cmath>
#include <ctime>
#include <nlohmann/json.hpp>

#include "models/accelerate_config_reader.h"
#include "models/calibration.h"
#include "models/deepspeed_config_reader.h"
#include "models/model_catalog.h"
#include "models/model_reader.h"
#include "models/peft_config_reader.h"
#include "models/safetensors_reader.h"
#include "models/trainer_config_reader.h"
#include "models/training_arguments_reader.h"
#include "models/workload_reader.h"
#include "planner/plan.h"
#include "reports/document_check.h"
#include "reports/growth.h"
#include "reports/json_writer.h"
#include "reports/measurement.h"
#include "reports/oom/reading.h"
#include "reports/oom/scanner.h"
#include "reports/page/page.h"
#include "reports/plan_json.h"
#include "reports/prediction.h"
#include "reports/snapshot/allocation_history.h"
#include "reports/snapshot/step_window.h"
#include "tests/fuzz/given.h"
#include "tools/cli/command_line.h"
#include "tools/cli/doors.h"
#include "tools/cli/plan_source.h"
#include "tools/cli/query_json.h"
#include "tools/cli/request.h"

namespace plimsoll::tests {

namespace {

double cpu_seconds() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

#if defined(__SANITIZE_ADDRESS__) || defined(PLIMSOLL_FUZZING)
constexpr double kMostSeconds = 2;  // sanitizers are slow
#else
constexpr double kMostSeconds = 0.1;
#endif

void check_numbers(const nlohmann::json& value, const std::string& path) {
  if (value.is_object())
    for (const auto& [key, member] : value.items()) check_numbers(member, path + "." + key);
  if (value.is_array())
    for (const auto& element : value) check_numbers(element, path + "[]");
  if (value.is_number_float() && !std::isfinite(value.get<double>()))
    throw Broken(path + " is not finite");
  const bool bytes = path.ends_with("_bytes") && !path.ends_with("headroom_bytes");
  if (bytes && value.is_number() && value.get<double>() < 0) throw Broken(path + " is negative");
}

// Whoever gets an answer can rely on it: numbers are finite, bytes not negative, parts sum to the
// whole (reports/document_check.h), and it took at most 100 ms.
void check_answer(const tools::Request& request) {
  const double began = cpu_seconds();
  const reports::Plan plan = tools::answer(request);
  const double took = cpu_seconds() - began;
  if (took > kMostSeconds) throw Broken("answered after " + std::to_string(took) + " s");
  std::string text;
  reports::JsonWriter json(text, reports::JsonWriter::Style::compact);
  reports::write_plan(json, plan, tools::this_tool());
  check_numbers(nlohmann::json::parse(text), "plan");
  try {
    reports::check_plan(text, "the plan");
  } catch (const Error& error) {
    throw Broken("our own plan is refused: " + error.message());
  }
}

void model_config(std::string_view input) {
  refused_or_read([&] { models::read_model(input, "fuzzed", "config.json"); });
}

// A config, read by the planner: whatever is accepted has a plan or a reason.
void model_plan(std::string_view input) {
  refused_or_read([&] {
    const models::ModelSpec model = models::read_model(input, "fuzzed", "config.json");
    planner::Question question;
    question.model = &model;
    question.batch.seq_len = 128;
    question.detail = planner::Detail::none;
    question.remedies = false;
    planner::plan(question);
  });
}

void safetensors(std::string_view input) {
  const MemoryFile file(input);
  refused_or_read([&] { models::read_safetensors_header(file.path()); });
}

void deepspeed_config(std::string_view input) {
  refused_or_read([&] { models::read_deepspeed_config(input, "ds_config.json", 4096); });
  refused_or_read([&] { models::read_deepspeed_config(input, "ds_config.json", std::nullopt); });
}

void peft_config(std::string_view input) {
  static const models::ModelSpec model = models::catalog_model("llama-3.2-1b");
  refused_or_read([&] { models::read_peft_config(input, "adapter_config.json", &model); });
}

void accelerate_config(std::string_view input) {
  refused_or_read([&] { models::read_accelerate_config(input, "config.yaml"); });
}

void training_arguments(std::string_view input) {
  refused_or_read([&] { models::read_training_arguments(input, "arguments.yaml"); });
}

void workload(std::string_view input) {
  refused_or_read([&] { models::read_workload(input, "workload"); });
}

void calibration(std::string_view input) {
  refused_or_read([&] { models::read_calibrations(input, "calibration"); });
}

void plan_document(std::string_view input) {
  const std::string text(input);
  refused_or_read([&] { reports::read_prediction(text, "plan"); });
  refused_or_read([&] { reports::check_plan(text, "plan"); });
  refused_or_read([&] { tools::request_from_plan(text, "plan"); });
  refused_or_read([&] { reports::page(text, "plan"); });
  refused_or_read([&] { reports::read_baseline(text, "plan"); });
}

void measurement(std::string_view input) {
  refused_or_read([&] { reports::read_measurement(input, "measurement"); });
  refused_or_read([&] { reports::read_measured_rank(input, "measurement"); });
  refused_or_read([&] { reports::check_measurement(input, "measurement"); });
}

// A line of `plimsoll batch`: no files of the machine are named by it, since only names of the
// catalog are let through.
void question(std::string_view input) {
  static tools::Sources sources;
  refused_or_read([&] {
    std::string id;
    const tools::Query query = tools::query_from(input, id);
    if (query.model.find('/') != std::string::npos || query.model.find('.') == 0) return;
    for (const char* file : {"deepspeed", "calibration", "peft", "accelerate", "training-args"})
      if (query.options.has(file)) return;
    tools::Request request = tools::request_from(query.model, query.options, sources);
    request.question.detail = planner::Detail::none;
    request.question.remedies = false;
    check_answer(request);
  });
}

void command_line(std::string_view input) {
  std::vector<std::string> words{"plimsoll"};
  std::string word;
  for (const char c : input) {
    if (c != '\n' && c != '\0') {
      word += c;
      continue;
    }
    words.push_back(word);
    word.clear();
  }
  words.push_back(word);
  refused_or_read([&] { tools::parse_command_line(words, "0"); });
}

void oom_log(std::string_view input) {
  // Cut anywhere, the log says the same.
  const auto log_in_pieces_of = [&](std::size_t piece) {
    reports::OomScanner scanner;
    for (std::size_t at = 0; at < input.size(); at += piece) scanner.feed(input.substr(at, piece));
    scanner.finish();
    return scanner.log();
  };
  const reports::OomLog whole = log_in_pieces_of(std::max<std::size_t>(1, input.size()));
  const reports::OomLog pieces = log_in_pieces_of(7);
  if (pieces.messages != whole.messages || pieces.groups.size() != whole.groups.size())
    throw Broken("in pieces the log has other messages");
  if (whole.first) reports::read_cause(*whole.first);
}

// A pickle of torch.cuda.memory._dump_snapshot(), up to where the plan comes in.
void snapshot(std::string_view input) {
  refused_or_read([&] {
    const reports::AllocationHistory history =
        reports::history_of(reports::read_snapshot(input, "snapshot.pickle"));
    std::vector<std::int64_t> sizes;
    for (const reports::SnapshotAllocation& one : history.allocations)
      sizes.push_back(reports::size_class(one.requested));
    reports::step_window(history, sizes);
  });
}

void trainer_config(std::string_view input) {
  refused_or_read([&] { models::read_axolotl_config(input, "axolotl.yaml"); });
  refused_or_read([&] { models::read_llamafactory_config(input, "llamafactory.yaml"); });
  refused_or_read([&] { models::read_swift_arguments(input, "swift.yaml", 4); });
}

void torchtitan_config(std::string_view input) {
  refused_or_read([&] { models::read_torchtitan_config(input, "titan.toml"); });
}

constexpr std::array kTargets{FuzzTarget{"model_config", model_config},
                              FuzzTarget{"model_plan", model_plan},
                              FuzzTarget{"safetensors", safetensors},
                              FuzzTarget{"deepspeed_config", deepspeed_config},
                              FuzzTarget{"peft_config", peft_config},
                              FuzzTarget{"accelerate_config", accelerate_config},
                              FuzzTarget{"training_arguments", training_arguments},
                              FuzzTarget{"trainer_config", trainer_config},
                              FuzzTarget{"torchtitan_config", torchtitan_config},
                              FuzzTarget{"workload", workload},
                              FuzzTarget{"calibration", calibration},
                              FuzzTarget{"plan_document", plan_document},
                              FuzzTarget{"measurement", measurement},
                              FuzzTarget{"question", question},
                              FuzzTarget{"command_line", command_line},
                              FuzzTarget{"oom_log", oom_log},
                              FuzzTarget{"snapshot", snapshot}};

}  // namespace

std::span<const FuzzTarget> fuzz_targets() {
  static const std::vector<FuzzTarget> all = [] {
    std::vector<FuzzTarget> targets(kTargets.begin(), kTargets.end());
    targets.insert(targets.end(), file_targets().begin(), file_targets().end());
    return targets;
  }();
  return all;
}

const FuzzTarget* find_fuzz_target(std::string_view name) {
  for (const FuzzTarget& target : fuzz_targets())
    if (target.name == name) return &target;
  return nullptr;
}

}  // namespace plimsoll::tests
