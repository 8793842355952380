// What the rows of a batch hold: --padding-mask, --padding; and of a data set --data, --packing and
// --pad-to-multiple-of.
#pragma once

#include "models/lengths.h"
#include "tools/cli/options.h"
#include "tools/cli/request.h"

namespace plimsoll::tools {

// Without --data. Error{bad_input}: what needs it.
models::Rows rows_from(const Options& options);

// With --data: the question becomes that of the largest micro-batch that its lengths make. Its
// strategy and batch are there already. `most`: of the model, 0 for none.
void use_data(const Options& options, std::int64_t most, Request& request);

// What else a plan says of them: the median batch's peak beside the worst one's, tokens that are
// no padding.
void add_batches(const Request& request, reports::Plan& plan);

}  // namespace plimsoll::tools
