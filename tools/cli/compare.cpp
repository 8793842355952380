#include "reports/comparison.h"

#include <algorithm>

#include "models/base/error.h"
#include "reports/comparison_json.h"
#include "reports/comparison_table.h"
#include "tools/cli/doors.h"
#include "tools/cli/output.h"
#include "tools/cli/plan_document_json.h"
#include "tools/cli/values.h"

namespace plimsoll::tools {

namespace {
std::string name_of_source(const std::string& path) {
  return path == "-" ? "standard input" : path;
}
}  // namespace

int compare(const CommandLine& line) {
  const std::vector<std::string>& files = line.arguments;
  check(files.size() >= 2, ErrorKind::bad_input,
        "compare needs PREDICTION.json and at least one MEASUREMENT.json");
  check(std::ranges::count(files, "-") <= 1, ErrorKind::bad_input,
        "-: standard input can be read once");
  double tolerance = reports::kTolerance;
  if (const std::string* text = line.options.find("tolerance"))
    tolerance = real_value("tolerance", *text, 0, 1000) / 100;

  const std::string source = name_of_source(files[0]);
  const reports::Prediction prediction =
      reports::read_prediction(first_plan(read_document(files[0]), source), source);
  std::vector<reports::Comparison> comparisons;
  for (std::size_t i = 1; i < files.size(); ++i)
    comparisons.push_back(reports::compare(
        prediction, reports::read_measurement(read_document(files[i]), name_of_source(files[i])),
        tolerance));

  std::string document, table;
  if (wants_document(line.options)) {
    reports::JsonWriter json(document, reports::JsonWriter::Style::pretty);
    reports::write_comparisons(json, comparisons, this_tool());
    document += '\n';
  }
  for (const reports::Comparison& comparison : comparisons) {
    if (comparisons.size() > 1)
      table += (table.empty() ? "" : "\n") + reports::printable(comparison.measurement) + "\n";
    table += reports::comparison_table(comparison, standard_output_terminal());
  }
  deliver(line.options, document, table);
  return std::ranges::all_of(comparisons, &reports::Comparison::agrees) ? 0 : 1;
}

}  // namespace plimsoll::tools
