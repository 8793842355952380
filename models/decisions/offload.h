// In the host's memory: optimizer states (--offload optimizer), and inputs of checkpointed layers
// (--offload activations, below).
//
// A rank then has a second memory: an arena in the host's memory, under the rules of the first
// (workspace.h), with a ledger of its own. There stay masters, every state and its scales of each
// trained unit, under the names and in the pieces that they have on the device otherwise
// (sharding.h, optimizer_states.h), and a copy of the block of scalars (kHostScalars). The device
// has none of them. On a GPU that memory is page-locked, unless --offload-pin no.
//
// The optimizer steps on the host, as in ZeRO-Offload (Ren et al., arXiv 2101.06840), and not on
// the device in a buffer through which states pass: states never move then. What moves is a
// gradient down and a weight up, 4 bytes an element in 16 bits, where AdamW's master and moments
// would be 12 in each direction. The host's kernels have the device's bits, so that a step with
// offloading is the step without; and nothing on the device has a size that somebody must choose.
//
// Behind the norm of all gradients the scalars are copied to the host. A unit's step is an op of
// both memories, of one name. In the host's it makes two buffers that die with it: the gradients
// of what this rank steps (UnitNames::host_gradients), and the weights (host_parameters), which are
// copied down where there are no masters. After the kernel the weights are copied back. Where a
// step is skipped (overflow) nothing is copied, and the buffers are made all the same.
//
// --offload activations, with --recompute full: the input that a layer keeps for its backward is on
// the host from its forward on. Copies run beside the layers:
//   forward   kOffloadInput, an op of both memories: the host's tensor is made and the copy begins,
//             before the layer's first op, which reads the input as well; kOffloaded behind its
//             last one: the copy has ended, and the input dies on the device
//   backward  kFetchInput, an op of both memories, when the layer's parameters are there and before
//             it runs again: the copy of its own input has ended, which dies on the host; that of
//             the layer below is made on the device (kFetchedInput), and its copy begins. So two
//             are there while a layer runs backward. The uppermost's begins in an op of that name
//             before the layers, behind the head, whose logits are gone by then.
// The last layer's input goes too: which layer is the last is no question then.
#pragma once

#include "models/run_spec.h"

namespace plimsoll::models::decisions {

inline constexpr const char* kHostScalars = "scalars.host";
inline constexpr const char* kOffloadInput = "in.offload";  // ops
inline constexpr const char* kOffloaded = "in.offloaded";
inline constexpr const char* kFetchInput = "in.fetch";
inline constexpr const char* kHostInput = "in.host";  // of the compute dtype, as wide as the stream
inline constexpr const char* kFetchedInput = "in";

// Error{unsupported}: what the runtime keeps on the device.
inline void check_offload(const Strategy& s) {
  check(!s.offload.gradients && !s.offload.params, ErrorKind::unsupported,
        "--offload gradients, params: plimsoll's runtime keeps them on the device (optimizer and "
        "activations are offloaded; stacks pytorch and deepspeed are planned)");
  check(!s.offload.activations || s.recompute.kind == RecomputeKind::full, ErrorKind::unsupported,
        "--offload activations: plimsoll's runtime offloads the inputs of layers that are made "
        "again one by one (--recompute full)");
}

constexpr bool uses_host(const Strategy& s) {
  return s.offload.optimizer || s.offload.activations;
}

// Whether the host's part is page-locked.
constexpr bool pins_host(const Strategy& s) {
  return s.offload.pinned && s.device == Device::cuda;
}

}  // namespace plimsoll::models::decisions
