#include "models/specs/documents.h"

#include "models/base/error.h"
#include "models/specs/embedded.h"

namespace plimsoll::models::specs {

std::string_view document(std::string_view name) {
  for (const Document& d : other_documents())
    if (d.name == name) return d.json;
  fail(ErrorKind::internal, "models/specs/" + std::string(name) + ".json is not in this binary");
}

}  // namespace plimsoll::models::specs
