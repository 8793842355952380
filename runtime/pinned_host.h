// The host's memory, page-locked, for copies from and to GPUs. Only in a build with CUDA; compiled
// and linked, and has not run on a GPU yet.
#pragma once

#include "runtime/device.h"

namespace plimsoll::runtime {

// As host_device(), but what `reserve` gives is locked as it grows, an eighth more than was asked
// for at most.
Device& pinned_host();

}  // namespace plimsoll::runtime
