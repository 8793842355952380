// What of a strategy is bitsandbytes', and so of the release that --bitsandbytes-version names.
#pragma once

#include "models/run_spec.h"

namespace plimsoll::models {

// Weights that it packs: NF4, FP4, LLM.int8().
bool packs_with_bitsandbytes(const PackedStorage& storage);
bool packs_with_bitsandbytes(const Strategy& strategy);

// Those, or an optimizer of its.
bool runs_bitsandbytes(const Strategy& strategy);

// Of 4 bits: whether a linear's node of autograd holds its input, beside what autograd saves.
bool matmul_4bit_keeps_input(const Strategy& strategy);

// That, or LLM.int8()'s, which do.
bool contexts_keep_inputs(const Strategy& strategy);

// Of 4 bits: whether a linear computes in the dtype of what it reads first, where that is fp32 or
// bf16, whatever bnb_4bit_compute_dtype says; under autocast the product then casts.
bool computes_as_it_reads(const Strategy& strategy);

// Of 4 bits: whether a bias is stored in the dtype of what its linear reads.
bool stores_bias_as_it_reads(const Strategy& strategy);

// Of double quantization: whether all weights share the values that packed scales stand for.
bool shares_scale_table(const Strategy& strategy);

}  // namespace plimsoll::models
