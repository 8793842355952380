// How ranks that exchange data reach each other, and whether their sums need a block to be made in.
#pragma once

#include "models/run_spec.h"

namespace plimsoll::models::decisions {

// Several GPUs talk over NCCL; ranks on one host are threads.
constexpr Exchange usual_exchange(Device device) {
  return device == Device::cuda ? Exchange::nccl : Exchange::threads;
}
constexpr Exchange exchange_of(const Strategy& s) {
  return s.exchange.value_or(usual_exchange(s.device));
}

// Sums in the runtime's own order over a network are received into one block, as large as the
// largest message (kStaging). NCCL's own sums, of the fast mode, need none, and threads read each
// other's buffers.
constexpr bool stages_sums(Exchange exchange, bool deterministic) {
  return exchange == Exchange::mpi || (exchange == Exchange::nccl && deterministic);
}

}  // namespace plimsoll::models::decisions
