// `--recompute fit` and `--recompute budget:SIZE`: not a recomputation, but what it has to achieve.
#pragma once

#include "tools/cli/request.h"

namespace plimsoll::tools {

// Whether that is asked, in place of a recomputation.
bool wishes_recompute(const Options& options);
// Puts the recomputation that achieves it into the question, and says in the notes why it is that
// one. Error{bad_input}: nothing to fit into.
void choose_recompute(const Options& options, Request& request);

}  // namespace plimsoll::tools
