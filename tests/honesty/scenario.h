// A workload, what was predicted of it, what was measured, and whether the two agree.
#pragma once

#include "reports/comparison.h"
#include "tests/witness/case.h"

namespace plimsoll::honesty {

using witness::Case;

// Three layers of a tiny Llama, fp32, one step of 2 x 10 tokens.
Case llama(std::int64_t ranks, int zero);
// Its gradients cast to bf16 while ranks exchange them.
Case cast(std::int64_t ranks, int zero);
// The same in bf16, with adapters on a packed base; nf4-dq: in 4 bits whose scales have 8.
Case packed(std::int64_t ranks, int zero, std::string_view storage = "nf4-dq");

// As `fit --detail` writes it; the program may have a fault.
reports::Prediction prediction_of(const Case& c, const witness::Predicted& predicted);

// As plimsoll-run writes it.
reports::Measurement measurement_of(const reports::Prediction& prediction,
                                    const witness::Measured& run);

// The verdict's first difference; "" where everything agrees. Fails the test where the verdict and
// its differences contradict each other.
std::string first_difference(const reports::Prediction& prediction, const witness::Measured& run);

}  // namespace plimsoll::honesty
