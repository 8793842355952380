// `plimsoll report`: a document as a page, a measured step for the viewers of traces.
#include <cstdint>

#include "models/base/error.h"
#include "reports/page/page.h"
#include "tools/cli/doors.h"
#include "tools/cli/output.h"
#include "tools/cli/plan_document_json.h"
#include "tools/cli/step_files.h"
#include "tools/cli/values.h"

namespace plimsoll::tools {

namespace {
void write_page(const std::string& path, const std::string& page) {
  if (path == "-") {
    print(page);
    return;
  }
  AtomicFile file(path, "--html");
  file.write(page);
  file.commit();
}

reports::StepHistory measured_step(const Options& options, const std::string& text,
                                   const std::string& source) {
  const reports::Measurement measurement = reports::read_measurement(text, source);
  check(!measurement.ranks.empty(), ErrorKind::bad_input,
        [&] { return source + ": holds no rank"; });
  const std::string* rank = options.find("rank");
  return reports::history_of(measurement, rank == nullptr ? measurement.ranks.front().rank
                                                          : whole("rank", *rank, 0, INT32_MAX));
}
}  // namespace

int report(const CommandLine& line) {
  const Options& options = line.options;
  check(!line.argument.empty(), ErrorKind::bad_input,
        "FILE.json is missing: what a command wrote with --json, or - for standard input");
  const std::string* html = options.find("html");
  const bool shows_step = wants_step(options);
  check(html != nullptr || shows_step, ErrorKind::bad_input,
        "--html is missing: the file of the page, or - for standard output (or --trace, "
        "--memory-viz: of a measurement)");
  check(shows_step || !options.has("rank"), ErrorKind::bad_input,
        "--rank: chooses for --trace and --memory-viz, and neither is there");
  check_step_files(options);
  const std::string source = line.argument == "-" ? "standard input" : line.argument;
  const std::string text = read_document(line.argument);
  if (html != nullptr) write_page(*html, reports::page(text, source));
  if (shows_step) write_step(options, measured_step(options, text, source));
  return 0;
}

}  // namespace plimsoll::tools
