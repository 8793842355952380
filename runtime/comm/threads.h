// N ranks as threads of this process.
#pragma once

#include <functional>

#include "runtime/comm/communicator.h"
#include "runtime/comm/shared_buffers.h"

namespace plimsoll::runtime::comm {

struct ThreadOptions {
  // A rank that keeps the others waiting longer ends the job.
  double timeout_seconds = 600;
  SharedBuffers* buffers = &host_buffers();  // where the ranks' tensors are
};

// Runs `function` on `ranks` threads at once, each with its rank of one group, and returns when all
// have returned. The first error of any rank ends the job (nobody waits for ever) and is thrown
// again as "rank r: ...". A rank that does not even come back then, within the timeout, is left
// behind, and the error says so: the process should end.
void run_ranks(int ranks, std::function<void(Communicator&)> function,
               const ThreadOptions& options = {});

}  // namespace plimsoll::runtime::comm
