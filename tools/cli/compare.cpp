#include "reports/comparison.h"

#include <fmt/format.h>

#include <algorithm>
#include <fstream>

#include "models/base/error.h"
#include "models/json_reader.h"
#include "reports/comparison_json.h"
#include "reports/comparison_table.h"
#include "reports/snapshot/pickle_reader.h"
#include "reports/snapshot/snapshot_report.h"
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

std::string document_of(const std::vector<reports::SnapshotComparison>& comparisons) {
  std::string document;
  reports::JsonWriter json(document, reports::JsonWriter::Style::pretty);
  reports::write_snapshot_comparisons(json, comparisons, this_tool());
  return document + '\n';
}

// Of several, each table has its file above it. 0: all agree.
template <class Comparison, class Table>
int deliver_all(const Options& options, const std::vector<Comparison>& comparisons,
                std::string Comparison::*file, Table&& table_of) {
  const std::string document = wants_document(options) ? document_of(comparisons) : "";
  std::string table;
  for (const Comparison& comparison : comparisons) {
    if (comparisons.size() > 1)
      table += (table.empty() ? "" : "\n") + reports::printable(comparison.*file) + "\n";
    table += table_of(comparison, standard_output_terminal());
  }
  deliver(options, document, table);
  return std::ranges::all_of(comparisons, &Comparison::agrees) ? 0 : 1;
}

// Larger than any document: a long history has a hundred bytes and more an event.
constexpr std::int64_t kMostSnapshotBytes = std::int64_t{1} << 30;

bool is_snapshot_file(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  char head[3];
  return path != "-" && in.read(head, sizeof head) && reports::is_pickle({head, sizeof head});
}

// Of snapshots of torch.cuda.memory, which are pickles.
std::vector<reports::SnapshotComparison> snapshot_comparisons(const Named& plan,
                                                              const std::vector<Named>& snapshots,
                                                              double tolerance) {
  const reports::Prediction prediction =
      reports::read_prediction(first_plan(plan.content, plan.name), plan.name);
  std::vector<reports::SnapshotComparison> out;
  for (const auto& [content, name] : snapshots) {
    check(reports::is_pickle(content), ErrorKind::bad_input,
          name + ": no pickle; measurements and snapshots are compared one kind at a time");
    out.push_back(reports::compare(prediction, reports::read_snapshot(content, name), tolerance));
  }
  return out;
}

int compare_snapshots(const Options& options, const std::string& plan,
                      const std::vector<std::string>& files, double tolerance) {
  std::vector<Named> snapshots;
  for (const std::string& file : files)
    snapshots.push_back({models::read_text_file(file, kMostSnapshotBytes), file});
  return deliver_all(
      options,
      snapshot_comparisons({read_document(plan), name_of_source(plan)}, snapshots, tolerance),
      &reports::SnapshotComparison::snapshot, reports::snapshot_table);
}
}  // namespace

std::string compare_document(const std::string& prediction,
                             const std::vector<std::string>& measurements, double percent) {
  check(percent >= 0 && percent <= 1000, ErrorKind::bad_input,
        "tolerance: must be a percentage from 0 to 1000");
  check(!measurements.empty(), ErrorKind::bad_input, "compare needs at least one measurement");
  const bool snapshots = reports::is_pickle(measurements[0]);
  std::vector<Named> measured;
  for (const std::string& one : measurements)
    measured.push_back(
        {one, fmt::format("{} {}", snapshots ? "snapshot" : "measurement", measured.size() + 1)});
  const Named plan{prediction, "the prediction"};
  if (snapshots) return document_of(snapshot_comparisons(plan, measured, percent / 100));
  return document_of(comparisons_of(plan, measured, percent / 100));
}

int compare(const CommandLine& line) {
  if (line.options.has("published")) return compare_published(line);
  check(!line.options.has("svg"), ErrorKind::bad_input, "--svg: is for compare --published");
  const std::vector<std::string>& files = line.arguments;
  check(files.size() >= 2, ErrorKind::bad_input,
        "compare needs PREDICTION.json and at least one MEASUREMENT.json or snapshot");
  check(std::ranges::count(files, "-") <= 1, ErrorKind::bad_input,
        "-: standard input can be read once");
  double tolerance = reports::kTolerance;
  if (const std::string* text = line.options.find("tolerance"))
    tolerance = real_value("tolerance", *text, 0, 1000) / 100;

  if (is_snapshot_file(files[1]))
    return compare_snapshots(line.options, files[0], {files.begin() + 1, files.end()}, tolerance);
  std::vector<Named> documents;
  for (const std::string& file : files)
    documents.push_back({read_document(file), name_of_source(file)});
  return deliver_all(
      line.options,
      comparisons_of(documents[0], {documents.begin() + 1, documents.end()}, tolerance),
      &reports::Comparison::measurement, reports::comparison_table);
}

}  // namespace plimsoll::tools
