#include "reports/json_writer.h"
#include "reports/plan_table.h"
#include "tools/cli/doors.h"
#include "tools/cli/output.h"
#include "tools/cli/request.h"

namespace plimsoll::tools {

void deliver(const Options& options, const std::string& document, const std::string& table) {
  const std::string* target = options.find("json");
  if (target != nullptr && *target == "-") {
    print(document);
    return;
  }
  std::optional<Error> failure;
  try {
    if (target != nullptr) {
      AtomicFile file(*target);
      file.write(document);
      file.commit();
    }
  } catch (const Error& error) {
    failure = error;
  }
  if (!options.has("quiet")) print(table);
  if (failure) throw *failure;
}

int fit(const CommandLine& line) {
  Sources sources;
  const Request request = request_from(line.argument, line.options, sources);
  const reports::Plan plan = answer(request);
  std::string document;
  if (line.options.has("json")) {
    reports::JsonWriter json(document, reports::JsonWriter::Style::pretty);
    reports::write_plan(json, plan, this_tool());
    document += '\n';
  }
  deliver(line.options, document, reports::plan_table(plan, standard_output_terminal()));
  // Model states alone say "no" where they are too much, and never "yes".
  if (plan.states_only) return plan.verdict == reports::Verdict::does_not_fit ? 1 : 0;
  return plan.fits ? 0 : 1;
}

}  // namespace plimsoll::tools
