#include "kernels/cuda/launch.h"

namespace plimsoll::kernels::cuda {

namespace {
thread_local const Launch* innermost = nullptr;
}

Launching::Launching(const Launch& launch) : launch_(launch), outer_(innermost) {
  check(!launch.faults || (launch.faults.dtype == DType::int32 && launch.faults.elements() == 2),
        ErrorKind::internal, "the fault word of a launch is int32 [2]");
  innermost = &launch_;
}
Launching::~Launching() {
  innermost = outer_;
}

const Launch& current_launch() {
  check(innermost != nullptr, ErrorKind::internal,
        "a CUDA kernel was called on a thread that has no Launching");
  return *innermost;
}

void throw_fault(Fault fault, std::int32_t value) {
  switch (fault) {
    case Fault::none:
      return;
    case Fault::token_id:
      fail(ErrorKind::bad_input,
           "token id " + std::to_string(value) + " is not a row of the vocabulary");
    case Fault::target:
      fail(ErrorKind::bad_input,
           "target " + std::to_string(value) + " is neither ignored nor below the logits of a row");
  }
  fail(ErrorKind::internal, "an unknown fault of a CUDA kernel");
}

}  // namespace plimsoll::kernels::cuda
