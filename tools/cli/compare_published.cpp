#include "models/base/error.h"
#include "tools/cli/doors.h"
#include "tools/cli/output.h"
#include "tools/published/report.h"

namespace plimsoll::tools {

int compare_published(const CommandLine& line) {
  check(line.arguments.size() <= 1, ErrorKind::bad_input,
        "compare --published takes one FOLDER of documents, or none for this program's own");
  for (const char* option : {"html", "tolerance"})
    check(!line.options.has(option), ErrorKind::bad_input,
          std::string("--") + option + ": is not for compare --published");
  std::vector<PublishedAnswers> all;
  for (PublishedDocument& document : published_documents(line.argument))
    all.push_back(published_answers(std::move(document)));
  deliver(line.options, wants_document(line.options) ? published_json(all, this_tool()) : "",
          published_table(all, standard_output_terminal()));
  if (const std::string* target = line.options.find("svg")) {
    AtomicFile file(*target, "--svg");
    file.write(published_svg(all));
    file.commit();
  }
  return 0;
}

}  // namespace plimsoll::tools
