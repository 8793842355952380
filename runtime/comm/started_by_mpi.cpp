#include <cstdlib>

#include "runtime/comm/mpi_ranks.h"

namespace plimsoll::runtime::comm {

bool started_by_mpi() {
  return std::getenv("OMPI_COMM_WORLD_SIZE") != nullptr || std::getenv("PMIX_RANK") != nullptr;
}

}  // namespace plimsoll::runtime::comm
