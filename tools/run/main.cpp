// plimsoll-run: executes a plan, measures it, and says whether the plan was right.
#include <fmt/format.h>

#include <new>

#include "models/base/error.h"
#include "reports/comparison.h"
#include "reports/comparison_table.h"
#include "reports/measurement_json.h"
#include "reports/prediction.h"
#include "reports/profile_table.h"
#include "tools/cli/command_line.h"
#include "tools/cli/doors.h"
#include "tools/cli/output.h"
#include "tools/cli/plan_document_json.h"
#include "tools/cli/process.h"
#include "tools/cli/targets.h"
#include "tools/run/training.h"

namespace plimsoll::tools {

namespace {
std::vector<Option> all_options() {
  std::vector<Option> options(kTrainingOptions.begin(), kTrainingOptions.end());
  options.push_back({"ranks", "N", "Run", "of the plan; another number is refused"});
  options.push_back({"device", "NAME", "Run", "of the plan; another one is refused"});
  options.push_back({"gpu-memory", "SIZE", "Run", "what each rank may reserve (the plan's)"});
  return options;
}

void write(const reports::Measurement& measurement, const reports::Comparison* comparison,
           const CommandLine& line) {
  std::string document, table;
  if (wants_document(line.options)) {
    reports::JsonWriter json(document, reports::JsonWriter::Style::pretty);
    reports::write_measurement(json, measurement, this_tool(), comparison);
    document += '\n';
  }
  if (comparison != nullptr)
    table = reports::comparison_table(*comparison, standard_output_terminal());
  constexpr std::size_t kRows = 24;
  if (measurement.profile)
    table += reports::profile_table(*measurement.profile, kRows, standard_output_terminal());
  deliver(line.options, document, table);
}

int report(const reports::Measurement& measurement, const reports::Prediction& prediction,
           const CommandLine& line) {
  std::optional<reports::Comparison> comparison;
  if (measurement.ended()) comparison = reports::compare(prediction, measurement);
  write(measurement, comparison ? &*comparison : nullptr, line);
  if (!measurement.trained())
    say(measurement.error ? measurement.error->message : measurement.outcome);
  if (!comparison) return 3;
  return comparison->agrees ? 0 : 1;
}

int execute(const CommandLine& line) {
  check(!line.argument.empty(), ErrorKind::bad_input,
        "PLAN.json is missing: what `plimsoll fit --stack plimsoll --detail --json FILE` wrote");
  const std::string source = line.argument == "-" ? "standard input" : line.argument;
  const std::string plan = first_plan(read_document(line.argument), source);
  const RunOptions options = run_options_from(line.options);
  const Job job = job_from(plan, source, options);
  const reports::Prediction prediction = reports::read_prediction(plan, source);
  Progress progress(options.quiet, options.steps);
  const reports::Measurement measurement =
      train(job, options, this_tool(), progress,
            [&](const reports::Measurement& ended) { write(ended, nullptr, line); });
  progress.end();
  if (measurement.trained() && measurement.ranks.empty()) return 0;  // not rank 0
  return report(measurement, prediction, line);
}
}  // namespace

int run_program(std::vector<std::string> words) {
  const std::vector<Option> options = all_options();
  const Command command{
      .name = "plimsoll-run",
      .argument = "PLAN.json",
      .help =
          "Executes the training steps of a plan for real, and compares what they cost with it "
          "(- for standard input). `plimsoll run` makes the plan first.",
      .example =
          "plimsoll fit gpt2 --stack plimsoll --device cpu --seq-len 64 --detail --json - | "
          "plimsoll-run -",
      .is_program = true,
      .own_options = options};
  try {
    if (words.size() == 1 && (words[0] == "--version" || words[0] == "-V")) {
      const reports::Tool tool = this_tool();
      print(fmt::format("plimsoll-run {} ({})\n", tool.version, tool.commit));
      return 0;
    }
    const CommandLine line = parse_arguments(command, std::move(words));
    if (!line.text.empty()) {
      print(line.text);
      return 0;
    }
    check_targets(line);
    return execute(line);
  } catch (const Error& error) {
    say(error.message());
    const bool input =
        error.kind() == ErrorKind::bad_input || error.kind() == ErrorKind::unsupported;
    return input ? 2 : 3;
  } catch (const std::bad_alloc&) {
    say("out of host memory");
  } catch (const std::exception& error) {
    say(error.what());
  }
  return 3;
}

}  // namespace plimsoll::tools

int main(int count, char** words) {
  using namespace plimsoll::tools;
  return run_process([&] { return run_program({words + (count > 0 ? 1 : 0), words + count}); });
}
