// `batch --fleet`: each job on each pool as fit answers it, then who goes where.
#include <fmt/format.h>

#include <algorithm>

#include "models/base/error.h"
#include "models/json_reader.h"
#include "reports/fleet.h"
#include "tools/cli/doors.h"
#include "tools/cli/host_memory.h"
#include "tools/cli/line_reader.h"
#include "tools/cli/output.h"
#include "tools/cli/progress_line.h"
#include "tools/cli/request.h"
#include "tools/cli/values.h"
#include "tools/fleet/fleet_file.h"
#include "tools/fleet/placement.h"
#include "tools/fleet/solver.h"

namespace plimsoll::tools {

namespace {
constexpr std::int64_t kMostFleetBytes = 64 << 20;
constexpr double kSolverSeconds = 10;

std::string whole_nodes_text(std::int64_t gpus, std::int64_t node) {
  return fmt::format("{} GPUs: more than a node of {} and no multiple of it", gpus, node);
}

std::string shortage(const reports::Plan& plan) {
  if (!plan.usable) return "does not fit";
  if (plan.device > *plan.usable)
    return fmt::format("lacks {} on {} GPU{}", reports::bytes_text(plan.device - *plan.usable),
                       plan.strategy.gpus, plan.strategy.gpus == 1 ? "" : "s");
  return plan.host_fits ? "may not fit: the range reaches beyond the card" : "host memory is short";
}

void judge(const reports::Plan& plan, const std::optional<double>& least,
           reports::FleetOption& option) {
  option.fits = plan.fits;
  option.device = plan.device;
  option.usable = plan.usable;
  option.tokens_per_second = plan.time.tokens_per_second;
  option.possible = option.fits;
  if (!plan.fits) {
    option.why = shortage(plan);
  } else if (least && (!option.tokens_per_second || *option.tokens_per_second < *least)) {
    option.possible = false;
    option.why = option.tokens_per_second
                     ? fmt::format("fits, but {:.0f} tokens/s on {} are fewer than {:.0f}",
                                   *option.tokens_per_second, option.gpus, *least)
                     : "fits, but its speed is not known";
  }
}

// What fit says about a job on so many GPUs of a pool.
reports::FleetOption asked(const FleetFile& file, std::size_t job, std::size_t pool,
                           std::int64_t gpus, Sources& sources, bool& answered) {
  reports::FleetOption option{.pool = pool, .gpus = gpus};
  const std::int64_t node = file.fleet.pools[pool].gpus_per_node;
  answered = true;
  if (gpus > node && gpus % node != 0) {
    option.why = whole_nodes_text(gpus, node);
    return option;
  }
  Options options = file.of_job[job].options;
  // A pool's nodes and bandwidths say nothing of a bare count; that is no fault of either.
  const bool states_only = options.has("params");
  for (const auto& [name, value] : file.of_pool[pool].given())
    if (!states_only || !find_plan_option(name)->says_of_step) options.add(name, value);
  options.add("gpus", std::to_string(gpus));
  try {
    Request request = request_from(file.of_job[job].model, options, sources);
    use_host_memory(request.question);
    request.question.detail = planner::Detail::none;
    request.question.remedies = false;
    judge(answer(request), file.fleet.jobs[job].min_tokens_per_second, option);
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::bad_input && error.kind() != ErrorKind::unsupported) throw;
    option.why = error.message();
    answered = false;
  }
  return option;
}

bool may_run_on(const FleetQuery& query, const std::string& pool) {
  return query.pools.empty() || std::ranges::find(query.pools, pool) != query.pools.end();
}

void ask_all(FleetFile& file, const std::string& source, Sources& sources, bool quiet) {
  ProgressLine progress("jobs on pools", file.fleet.jobs.size() * file.fleet.pools.size(), quiet);
  for (std::size_t j = 0; j < file.fleet.jobs.size(); ++j) {
    reports::FleetJob& job = file.fleet.jobs[j];
    bool any = false;
    for (std::size_t p = 0; p < file.fleet.pools.size(); ++p) {
      progress.advance();
      if (!may_run_on(file.of_job[j], file.fleet.pools[p].name)) continue;
      const auto sizes =
          file.of_job[j].sizes.empty() ? usual_sizes(file.fleet.pools[p]) : file.of_job[j].sizes;
      for (const std::int64_t gpus : sizes) {
        bool answered = false;
        job.options.push_back(asked(file, j, p, gpus, sources, answered));
        any = any || answered;
      }
    }
    // What no pool can answer is wrong with the question, not with the fleet.
    check(any || job.options.empty(), ErrorKind::bad_input,
          [&] { return fmt::format("{}: job '{}': {}", source, job.name, job.options[0].why); });
  }
}
}  // namespace

int plan_fleet(const CommandLine& line) {
  const std::string& path = *line.options.find("fleet");
  for (const char* other : {"fields", "csv", "markdown"})
    check(!line.options.has(other), ErrorKind::bad_input,
          fmt::format("--{}: is for answers to queries, and --fleet has one answer", other));
  const std::string source = path == "-" ? "standard input" : path;
  FleetFile file = read_fleet(models::read_text_file(path, kMostFleetBytes), source);
  if (!line.argument.empty()) {
    LineReader reader(line.argument);
    std::int64_t number = 0;
    while (const auto text = reader.next()) {
      ++number;
      if (text->find_first_not_of(" \t\v\f\r") != std::string_view::npos)
        add_job(file, *text, number, line.argument == "-" ? "standard input" : line.argument);
    }
  }
  check_fleet(file, source);
  solver_version();  // before minutes of questions
  double seconds = kSolverSeconds;
  if (const std::string* text = line.options.find("solver-seconds"))
    seconds = real_value("solver-seconds", *text, 0.01, 86400);
  Sources sources;
  ask_all(file, source, sources, line.options.has("quiet"));
  place(file.fleet, seconds);
  std::string document;
  if (wants_document(line.options)) {
    reports::JsonWriter json(document, reports::JsonWriter::Style::pretty);
    reports::write_fleet(json, file.fleet, this_tool());
    document += '\n';
  }
  deliver(line.options, document, reports::fleet_table(file.fleet, standard_output_terminal()));
  return file.fleet.fits() ? 0 : 1;
}

}  // namespace plimsoll::tools
