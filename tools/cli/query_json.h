// One line of a batch: a JSON object whose keys are the options of `fit`.
#pragma once

#include <string>
#include <string_view>

#include "tools/cli/options.h"

namespace plimsoll::tools {

struct Query {
  std::string model;  // "": none given
  Options options;
};

// Keys as on the command line, with _ or - inside; "model" is the MODEL argument; numbers, strings,
// true and false (yes and no; for flags: given or not), lists for comma lists; null is not given.
// `id`: what "id" holds, a string or a number, as JSON text; set before anything else is refused.
// Error{bad_input}: no object, an unknown key (the nearest is named), a key that is there twice, a
// value of another kind.
// `own`: options of a command beside those of a question.
Query query_from(std::string_view line, std::string& id, std::span<const Option> own = {});

}  // namespace plimsoll::tools
