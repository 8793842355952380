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
// The contents of documents, and their names for messages.
struct Named {
  std::string content, name;
};

std::vector<reports::Comparison> comparisons_of(const Named& predicted,
                                                const std::vector<Named>& measured,
                                                double tolerance) {
  const reports::Prediction prediction =
      reports::read_prediction(first_plan(predicted.content, predicted.name), predicted.name);
  std::vector<reports::Comparison> out;
  for (const Named& one : measured)
    out.push_back(
        reports::compare(prediction, reports::read_measurement(one.content, one.name), tolerance));
  return out;
}

std::string document_of(const std::vector<reports::Comparison>& comparisons) {
  std::string document;
  reports::JsonWriter json(document, reports::JsonWriter::Style::pretty);
  reports::write_comparisons(json, comparisons, this_tool());
  return document + '\n';
}
}  // namespace

std::string compare_document(const std::string& prediction,
                             const std::vector<std::string>& measurements, double percent) {
  check(percent >= 0 && percent <= 1000, ErrorKind::bad_input,
        "tolerance: must be a percentage from 0 to 1000");
  std::vector<Named> measured;
  for (const std::string& one : measurements)
    measured.push_back({one, "measurement " + std::to_string(measured.size() + 1)});
  check(!measured.empty(), ErrorKind::bad_input, "compare needs at least one measurement");
  return document_of(comparisons_of({prediction, "the prediction"}, measured, percent / 100));
}

int compare(const CommandLine& line) {
  const std::vector<std::string>& files = line.arguments;
  check(files.size() >= 2, ErrorKind::bad_input,
        "compare needs PREDICTION.json and at least one MEASUREMENT.json");
  check(std::ranges::count(files, "-") <= 1, ErrorKind::bad_input,
        "-: standard input can be read once");
  double tolerance = reports::kTolerance;
  if (const std::string* text = line.options.find("tolerance"))
    tolerance = real_value("tolerance", *text, 0, 1000) / 100;

  std::vector<Named> documents;
  for (const std::string& file : files)
    documents.push_back({read_document(file), name_of_source(file)});
  const std::vector<reports::Comparison> comparisons =
      comparisons_of(documents[0], {documents.begin() + 1, documents.end()}, tolerance);

  const std::string document = wants_document(line.options) ? document_of(comparisons) : "";
  std::string table;
  for (const reports::Comparison& comparison : comparisons) {
    if (comparisons.size() > 1)
      table += (table.empty() ? "" : "\n") + reports::printable(comparison.measurement) + "\n";
    table += reports::comparison_table(comparison, standard_output_terminal());
  }
  deliver(line.options, document, table);
  return std::ranges::all_of(comparisons, &reports::Comparison::agrees) ? 0 : 1;
}

}  // namespace plimsoll::tools
