#include <optional>

#include "models/base/error.h"
#include "reports/page/page.h"
#include "tools/cli/doors.h"
#include "tools/cli/output.h"

namespace plimsoll::tools {

namespace {
void write_whole(const std::string& path, const std::string& option, const std::string& text,
                 std::optional<Error>& failure) {
  try {
    AtomicFile file(path, option);
    file.write(text);
    file.commit();
  } catch (const Error& error) {
    failure = error;
  }
}
}  // namespace

bool wants_document(const Options& options) {
  return options.has("json") || options.has("html");
}

void deliver(const Options& options, const std::string& document, const std::string& table) {
  const std::string *json = options.find("json"), *html = options.find("html");
  const bool json_here = json != nullptr && *json == "-",
             html_here = html != nullptr && *html == "-";
  check(!json_here || !html_here, ErrorKind::bad_input,
        "--json - --html -: standard output holds one of them");
  std::optional<Error> failure;
  if (json_here)
    print(document);
  else if (json != nullptr)
    write_whole(*json, "--json", document, failure);
  if (html != nullptr) {
    const std::string page = reports::page(document, "the answer");
    if (html_here)
      print(page);
    else
      write_whole(*html, "--html", page, failure);
  }
  if (!json_here && !html_here && !options.has("quiet")) print(table);
  if (failure) throw *failure;
}

}  // namespace plimsoll::tools
