// A plan from a file or standard input, where a PLAN argument may be a recommendation.
#pragma once

#include <string>

namespace plimsoll::tools {

// The text of `path` ("-": standard input). Error{bad_input}: not readable, or above 256 MiB.
std::string read_document(const std::string& path);

// The plan in the document, as JSON text with its keys in their order: the document itself, or of
// plimsoll.recommendation/1 the first plan that is ranked. Error{bad_input} naming `source`: not
// JSON, another schema, a recommendation without any plan.
std::string first_plan(const std::string& document, const std::string& source);

// The same, of which nothing contradicts itself (reports/document_check.h).
std::string checked_plan(const std::string& document, const std::string& source);

}  // namespace plimsoll::tools
