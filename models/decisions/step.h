// The order of one optimizer step of our own runtime.
//
//   for each micro-batch, in the order of the data
//     ids and targets are copied into two buffers that stay (kTokenIds, one value a token each)
//     forward: embedding, layers upwards, final norm, head and loss (loss.h)
//     backward: head, final norm, layers downwards, embedding; each unit is reduced when its
//       backward is done (sharding.h)
//   the norm of all gradients; with loss scaling the overflow check, which may skip the rest
//   for each unit, in forward order
//     the optimizer, in place: it reads gradients, clipping factor and loss scale, and writes
//     masters, moments and weights; the unit's gradients die; stages 1 and 2 gather its weights
// Micro-batches do not overlap. Optimizer states exist from the start, gradients do not outlive the
// step. The loss is read back from the block of scalars; it has no tensor of its own.
#pragma once

#include "models/base/dtype.h"

namespace plimsoll::models::decisions {

inline constexpr DType kTokenIds = DType::int32;

// Loss, gradient norm, loss scale, overflow flag, step.
inline constexpr Bytes kScalars(256);

}  // namespace plimsoll::models::decisions
