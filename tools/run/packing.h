// What packing the frozen base (--quantize) loses of the weights that are read.
#pragma once

#include <string>

#include "runtime/model.h"

namespace plimsoll::tools {

// Values of each packed weight that are tried, in whole rows: few beside those of a large model.
inline constexpr std::int64_t kTriedValues = 1 << 18;

// "int8 loses 0.87 % of the base's packed weights (root mean square, the first rows of each)", of
// those that a GEMM in `compute` would have read. "": nothing is packed.
std::string packing_note(const models::ModelSpec& model, const models::Strategy& strategy,
                         DType compute, const runtime::ReadParameter& read);

}  // namespace plimsoll::tools
