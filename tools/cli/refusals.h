// What the contract has and this version does not model: refused by name, never ignored.
#pragma once

#include "tools/cli/options.h"

namespace plimsoll::tools {

// Throws Error{unsupported} for the first option whose value this version cannot predict, and
// Error{bad_input} where the value is none of the contract's.
void refuse_unmodelled(const Options& options);

// The same for `--params`: options that a bare count says nothing about.
void refuse_with_params(const Options& options);

}  // namespace plimsoll::tools
