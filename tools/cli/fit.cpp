#include "reports/json_writer.h"
#include "reports/page/timeline_svg.h"
#include "reports/plan_table.h"
#include "reports/plot.h"
#include "tools/cli/doors.h"
#include "tools/cli/output.h"
#include "tools/cli/request.h"

namespace plimsoll::tools {

int fit(const CommandLine& line) {
  Sources sources;
  const Request request = request_from(line.argument, line.options, sources);
  const reports::Plan plan = answer(request);
  std::string document;
  if (wants_document(line.options)) {
    reports::JsonWriter json(document, reports::JsonWriter::Style::pretty);
    reports::write_plan(json, plan, this_tool());
    document += '\n';
  }
  check(!line.options.has("svg") || !plan.timeline.empty(), ErrorKind::bad_input,
        "--svg: model states alone have no timeline");
  const reports::Terminal terminal = standard_output_terminal();
  std::string table = reports::plan_table(plan, terminal);
  if (line.options.has("plot"))
    table += reports::timeline_plot(reports::timeline_of(plan), terminal);
  deliver(line.options, document, table);
  if (const std::string* path = line.options.find("svg")) {
    AtomicFile file(*path, "--svg");
    file.write(reports::timeline_svg(reports::timeline_of(plan)));
    file.commit();
  }
  // Model states alone say "no" where they are too much, and never "yes".
  if (plan.states_only) return plan.verdict == reports::Verdict::does_not_fit ? 1 : 0;
  return plan.fits ? 0 : 1;
}

}  // namespace plimsoll::tools
