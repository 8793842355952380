// What embed.py writes beside documents.h.
#pragma once

#include "models/specs/documents.h"

namespace plimsoll::models::specs {

std::span<const Document> other_documents();  // the files beside models/, sorted by name

}  // namespace plimsoll::models::specs
