// Which dtype everything has when our own runtime trains.
#pragma once

#include "models/run_spec.h"

namespace plimsoll::models::decisions {

// One kind of trained parameter: the base model's, or the adapters'.
struct TrainedDtypes {
  DType weight = DType::fp32;  // stored, gathered, read by GEMMs
  DType gradient = DType::fp32;  // written, accumulated and reduced in it
  // fp32 copies that the optimizer steps, from which the weights are rounded. Without them 16-bit
  // weights are rounded stochastically (counter-based, keyed by the element's global index).
  bool masters = false;
  DType moments = DType::fp32;  // of each optimizer state
  bool operator==(const TrainedDtypes&) const = default;
};

//                   weight gradient master moment  bytes per parameter with AdamW
//   fp32               4       4       -      4        16
//   bf16-mixed         2       2       4      4        16   (ZeRO paper, arXiv 1910.02054 §3.1)
//   fp16-mixed         2       2       4      4        16   loss scaling
//   bf16               2       2       -      2         8   stochastic rounding
//   mixed, masters no  2       2       -      4        12   stochastic rounding
//   fp8-mixed          as bf16-mixed; linears multiply in 8 bits (models/decisions/float8.h)
// --grad-dtype fp32 makes the gradient 4. Adapters have their own dtype (fp32 unless asked
// otherwise); 16-bit ones get masters and moments as the base would.
struct Regime {
  DType compute = DType::fp32;  // activations, logits, operands of GEMMs, frozen weights
  TrainedDtypes base, adapters;
  // Gradients are cast to it for each exchange (sharding.h); none: they are exchanged as they are.
  std::optional<DType> reduce;
  bool loss_scaling = false;  // fp16: a dynamic factor on the loss, an overflow skips the step
  bool float8 = false;  // the layers' linears multiply in 8 bits
};

// Pure fp16 is refused: without masters an update of less than 2^-11 of a weight is lost and
// gradients below 2^-24 vanish, so it does not train. --param-dtype is the dtype that the file is
// read in; weights are converted while they are read, so it changes nothing here.
// Error{unsupported}: pure fp16. Error{bad_input}: combinations that cannot be.
Regime regime_of(const Strategy& strategy);

// --reduce-dtype: what gradients are cast to while ranks exchange them, where any that is trained
// is wider. Then those that have the dtype already are copied too: all units go one way. fp32 and
// the gradients' own dtype change nothing.
//
// Refused (regime_of, Error{bad_input}): fp32 of 16-bit gradients, and one 16-bit dtype of the
// other, which would be no compression; fp16 without loss scaling: a sum beyond 65504 would be
// infinite, and only loss scaling, which skips such a step and halves the scale (the overflow
// that the norm of gradients finds), makes that harmless; and what is below 2^-24 would be 0.
std::optional<DType> reduce_dtype(const Strategy& strategy);

// Reductions of a row (mean, 1/rms, log-sum-exp, the loss of a token) and rotary tables.
inline constexpr DType kStatistics = DType::fp32;
inline constexpr DType kNorms = DType::fp64;  // sums of squares of gradients

// The attention matrix where it is stored: `math` is the reference path, all in fp32.
constexpr DType probabilities_dtype(Attention attention, DType compute) {
  return attention == Attention::math ? DType::fp32 : compute;
}

}  // namespace plimsoll::models::decisions
