// The frozen base packed (--quantize), and the weights that are read: what it loses of them, and
// whether they are packed themselves.
#pragma once

#include <string>

#include "runtime/io/weight_source.h"
#include "runtime/model.h"

namespace plimsoll::tools {

// Values of each packed weight that are tried, in whole rows: few beside those of a large model.
inline constexpr std::int64_t kTriedValues = 1 << 18;

// Whether the source has weights packed, as the job does. Error{bad_input}: the source has a weight
// packed in another way than the job, or has it packed and the job not, or some packed and others
// not. Error{unsupported}: packed by other rows than ours.
bool check_packing(const models::ModelSpec& model, const models::Strategy& strategy,
                   const runtime::io::WeightSource& weights);

// "int8 loses 0.87 % of the base's packed weights (root mean square, the first rows of each)", of
// those that a GEMM in `compute` would have read. "": nothing is packed.
std::string packing_note(const models::ModelSpec& model, const models::Strategy& strategy,
                         DType compute, const runtime::ReadParameter& read);

}  // namespace plimsoll::tools
