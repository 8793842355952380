#include "runtime/comm/mpi_ranks.h"

namespace plimsoll::runtime::comm {

void run_mpi_rank(const std::function<void(Communicator&)>&, const MpiOptions&) {
  fail(ErrorKind::unsupported,
       "started by mpirun or srun --mpi, but this build has no MPI: install its development files "
       "(libopenmpi-dev) and build again with -Dmpi=enabled");
}

}  // namespace plimsoll::runtime::comm
