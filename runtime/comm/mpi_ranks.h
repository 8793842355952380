// Ranks as processes that mpirun or srun has started. Chosen in the build: mpi_communicator.cpp, or
// no_mpi.cpp where there is no MPI.
#pragma once

#include <functional>

#include "runtime/comm/communicator.h"
#include "runtime/comm/ending.h"

namespace plimsoll::runtime::comm {

// What the environment says, before any library is initialised: OMPI_COMM_WORLD_SIZE or PMIX_RANK.
bool started_by_mpi();

struct MpiOptions {
  double timeout_seconds = 600;  // as ThreadOptions
  Ending ending;  // before an error of any rank ends all processes
};

// Runs `function` with this process's rank of MPI's world, once in a process's life. An error does
// not come back: MPI_Abort ends the job. Error{unsupported}: this build has no MPI.
void run_mpi_rank(const std::function<void(Communicator&)>& function, const MpiOptions& options);

}  // namespace plimsoll::runtime::comm
