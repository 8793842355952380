#include <optional>

#include "models/base/error.h"
#include "tools/cli/doors.h"
#include "tools/cli/output.h"

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

}  // namespace plimsoll::tools
