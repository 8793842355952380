// What --zero sets.
#pragma once

#include "models/run_spec.h"

namespace plimsoll::models {

// --zero 2 of pytorch is FSDP that does not reshard after the forward.
inline void set_zero(Strategy& s, int stage) {
  s.data.zero = stage;
  if (stage > 0) s.data.kind = DataParallelKind::ddp;  // a process for each GPU
  s.data.reshard_after_forward = !(s.stack == Stack::pytorch && stage == 2);
}

}  // namespace plimsoll::models
