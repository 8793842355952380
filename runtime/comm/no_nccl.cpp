// In the place of nccl_communicator.cpp and nccl_watchdog.cpp where the build found no NCCL.
#include "runtime/comm/nccl_ranks.h"

namespace plimsoll::runtime::comm {

std::unique_ptr<Communicator> nccl_communicator(std::unique_ptr<Control> control,
                                                const NcclOptions& options) {
  if (control->size() == 1 && !options.also_alone) return single_communicator();
  fail(ErrorKind::unsupported,
       "several processes with a GPU each need NCCL, which was not found when this build was "
       "configured (-Dnccl=enabled says why)");
}

std::string nccl_version() {
  return {};
}

}  // namespace plimsoll::runtime::comm
