// What ranks of one process do with one another's buffers: on the host, or in the memory of one
// GPU.
#pragma once

#include <memory>
#include <span>

#include "kernels/tensor_view.h"

namespace plimsoll::runtime::comm {

// Called by the ranks' threads, at once. A GPU's work is queued, each rank's in the order of its
// own ops, and nobody waits for it on the host. Error{device}.
class SharedBuffers {
 public:
  // The end of what a rank has asked for so far; null: it is done.
  using Place = std::shared_ptr<const void>;

  virtual ~SharedBuffers() = default;
  virtual Place place() = 0;  // of the calling rank
  virtual void after(const Place& place) = 0;  // what the calling rank asks for next comes behind
  // The canonical sum of communicator.h. `to` may be one or several of `ranks`.
  virtual void sum(std::span<const void* const> ranks, std::span<void* const> to, DType dtype,
                   std::int64_t count) = 0;
  virtual void copy(void* to, const void* from, Bytes bytes) = 0;
};

SharedBuffers& host_buffers();
// For ranks whose tensors are on one `cuda_device`. Error{device}: a build without CUDA.
SharedBuffers& cuda_buffers();

}  // namespace plimsoll::runtime::comm
