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
// --optimizer-in-backward: when a unit's backward is done its gradients are reduced, waited for,
// and stepped with, before the backward goes on; what stages 1 and 2 have stepped is gathered
// there. One unit's gradients live at a time. Nothing is known of all of them: there is no norm, no
// clipping, no skipped step, and one micro-batch.
// Micro-batches do not overlap. Optimizer states exist from the start, gradients do not outlive the
// step. The loss is read back from the block of scalars; it has no tensor of its own.
#pragma once

#include "models/run_spec.h"

namespace plimsoll::models::decisions {

inline constexpr DType kTokenIds = DType::int32;

// Error{bad_input}: what looks at all gradients before it steps.
inline void check_step(const Strategy& s, const Batch& batch) {
  if (!s.optimizer_in_backward) return;
  check(batch.grad_accum == 1, ErrorKind::bad_input,
        "--optimizer-in-backward with --grad-accum: gradients would be stepped with before they "
        "are whole");
  check(s.precision != Precision::fp16_mixed, ErrorKind::bad_input,
        "--optimizer-in-backward with --precision fp16-mixed: a loss scaler looks at all gradients "
        "before it steps");
}

// Loss, gradient norm, loss scale, overflow flag, step.
inline constexpr Bytes kScalars(256);

}  // namespace plimsoll::models::decisions
