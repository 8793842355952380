// `plimsoll report`: a document as a page.
#include "models/base/error.h"
#include "reports/page/page.h"
#include "tools/cli/doors.h"
#include "tools/cli/output.h"
#include "tools/cli/plan_document_json.h"

namespace plimsoll::tools {

int report(const CommandLine& line) {
  check(!line.argument.empty(), ErrorKind::bad_input,
        "FILE.json is missing: what a command wrote with --json, or - for standard input");
  const std::string* html = line.options.find("html");
  check(html != nullptr, ErrorKind::bad_input,
        "--html is missing: the file of the page, or - for standard output");
  const std::string source = line.argument == "-" ? "standard input" : line.argument;
  const std::string page = reports::page(read_document(line.argument), source);
  if (*html == "-") {
    print(page);
    return 0;
  }
  AtomicFile file(*html, "--html");
  file.write(page);
  file.commit();
  return 0;
}

}  // namespace plimsoll::tools
