#include <cstdlib>

#include "models/base/error.h"
#include "reports/growth.h"
#include "tools/cli/doors.h"
#include "tools/cli/output.h"
#include "tools/cli/plan_document_json.h"
#include "tools/cli/step_files.h"
#include "tools/cli/values.h"

namespace plimsoll::tools {

namespace {
// "2%", "2", "0.5 %".
double allowed_growth(const Options& options) {
  const std::string* text = options.find("max-growth");
  if (!text) return 0;
  std::string digits = *text;
  while (digits.ends_with('%') || digits.ends_with(' ')) digits.pop_back();
  return real_value("max-growth", digits, 0, 1000) / 100;
}

bool wants_annotations(const Options& options) {
  const char* actions = std::getenv("GITHUB_ACTIONS");
  return options.has("github") || (actions && std::string_view(actions) == "true");
}
}  // namespace

int check_plans(const CommandLine& line) {
  const Options& options = line.options;
  check(!line.arguments.empty(), ErrorKind::bad_input, "check needs at least one PLAN.json");
  const std::string* against = options.find("against");
  check(against || !options.has("max-growth"), ErrorKind::bad_input,
        "--max-growth: more than what? --against BASELINE.json is missing");
  const double most = allowed_growth(options);
  std::vector<reports::PlanFigures> plans;
  for (const std::string& file : line.arguments) {
    const std::string source = file == "-" ? "standard input" : file;
    plans.push_back(reports::figures_of(first_plan(read_document(file), source), source));
  }
  std::optional<std::vector<reports::PlanFigures>> baseline;
  if (against) baseline = reports::read_baseline(read_document(*against), *against);
  const reports::Growth growth = reports::growth(plans, baseline, most);

  std::string document;
  if (wants_document(options)) {
    reports::JsonWriter json(document, reports::JsonWriter::Style::pretty);
    reports::write_growth(json, growth, this_tool());
    document += '\n';
  }
  if (options.has("junit")) write_file(options, "junit", reports::growth_junit(growth));
  std::string table = reports::growth_table(growth, standard_output_terminal());
  if (wants_annotations(options)) table += reports::growth_annotations(growth);
  deliver(options, document, table);
  return growth.ok() ? 0 : 1;
}

}  // namespace plimsoll::tools
