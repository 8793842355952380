#include <fmt/format.h>

#include <utility>
#include <vector>

#include "reports/json_writer.h"
#include "reports/page/timeline_svg.h"
#include "reports/plan_table.h"
#include "reports/plot.h"
#include "tools/cli/doors.h"
#include "tools/cli/explain.h"
#include "tools/cli/host_memory.h"
#include "tools/cli/output.h"
#include "tools/cli/request.h"
#include "tools/cli/savings.h"
#include "tools/cli/search_scope.h"
#include "tools/cli/step_files.h"

namespace plimsoll::tools {

namespace {
// Why there is no verdict.
std::string reason(const Request& request, const reports::Plan& plan) {
  if (!plan.states_only)
    return "this host does not say how much memory it has; give --gpu-memory, of each rank";
  const models::ModelSpec& model = request.model->spec;
  return "the training step of model_type '" + model.model_type + "' is not modelled yet" +
         (model.no_decoder.empty() ? "" : " (" + model.no_decoder + ")");
}

// 2: whether it fits was asked, and is not answered. --params asks for model states alone.
int exit_status(const Request& request, const reports::Plan& plan) {
  if (reports::verdict_text(plan)) return plan.fits ? 0 : 1;
  if (request.parameters) return 0;
  say("whether it fits is not known: " + reason(request, plan));
  return 2;
}

// What was asked, without where the answer goes.
std::string command_of(const CommandLine& line) {
  Options asked;
  for (const auto& [name, value] : line.options.given())
    if (find_plan_option(name) != nullptr) asked.add(name, value);
  return command_text(line.argument, asked);
}

std::string document_of(const reports::Plan& plan, std::string command = {}) {
  std::string document;
  reports::JsonWriter json(document, reports::JsonWriter::Style::pretty);
  reports::Tool tool = this_tool();
  tool.command = std::move(command);
  reports::write_plan(json, plan, tool);
  return document + '\n';
}

Request asked_for(const CommandLine& line, Sources& sources) {
  Request request = request_from(line.argument, line.options, sources);
  use_host_memory(request.question);
  return request;
}

void check_has_step(const Options& options, const reports::Plan& plan) {
  for (const char* name : {"svg", "trace", "memory-viz"})
    check(!options.has(name) || !plan.timeline.empty(), ErrorKind::bad_input,
          [&] { return fmt::format("--{}: model states alone have no timeline", name); });
}

// The table and the document of the same command stay as short as they were asked to be.
reports::StepHistory whole_step(Request request) {
  request.question.detail = planner::Detail::full;
  request.question.remedies = false;
  return reports::history_of(answer(request));
}

void write_step_files(const Options& options, const Request& request, const reports::Plan& plan) {
  if (options.has("svg"))
    write_file(options, "svg", reports::timeline_svg(reports::timeline_of(plan)));
  if (wants_step(options)) write_step(options, whole_step(request));
}
}  // namespace

// No command: what asks by this door may have written its files for one question.
std::string fit_document(const CommandLine& line) {
  Sources sources;
  return document_of(answer(asked_for(line, sources)));
}

int fit(const CommandLine& line) {
  check_step_files(line.options);
  Sources sources;
  const Request request = asked_for(line, sources);
  if (request.model && !request.model->note.empty() && !line.options.has("quiet"))
    say(request.model->note);
  reports::Plan plan = answer(request);
  if (line.options.has("html")) add_savings(request, line.options.has("quiet"), plan);
  const std::string document =
      wants_document(line.options) ? document_of(plan, command_of(line)) : "";
  check_has_step(line.options, plan);
  const reports::Terminal terminal = standard_output_terminal();
  const std::string* about = line.options.find("explain");
  std::string table = about != nullptr
                          ? explained(line.argument, line.options, request, *about, terminal)
                          : reports::plan_table(plan, terminal);
  if (line.options.has("plot"))
    table += reports::timeline_plot(reports::timeline_of(plan), terminal);
  deliver(line.options, document, table);
  write_step_files(line.options, request, plan);
  return exit_status(request, plan);
}

}  // namespace plimsoll::tools
