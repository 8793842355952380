// Streaming attention by a library, where fast mode may use one.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "kernels/cuda/launch.h"
#include "kernels/library_choice.h"

namespace plimsoll::kernels::cuda {

struct AttentionOperands {
  ConstColumns q, k, v;
  ConstTensorView out;
  ConstTensorView logsumexp;  // [sequences, heads, length], or none
  ConstTensorView d_out;  // from here on: backward
  Columns d_q, d_k, d_v;
  TensorView scratch;
};

class AttentionLibrary {
 public:
  virtual ~AttentionLibrary() = default;
  // Queues forward (backward) on the thread's stream. False where the library cannot, or where
  // backward's scratch is too small for one key head: what is queued then writes nothing but the
  // results and the scratch, and `refusals` says why. Forward writes `out` and `logsumexp`,
  // backward d_q, d_k, d_v.
  virtual bool forward(const AttentionShape& shape, const Dropout& dropout,
                       const AttentionOperands& operands) = 0;
  virtual bool backward(const AttentionShape& shape, const Dropout& dropout,
                        const AttentionOperands& operands) = 0;
  // Why, and how often.
  virtual std::map<std::string, std::int64_t> refusals() const = 0;
  virtual std::string version() const = 0;  // of the library that was loaded
  virtual std::vector<LibraryChoice> choices() const = 0;
};

// cuDNN's, for the current device. Belongs to one thread. Error{device}: there is no device;
// Error{unsupported}: this build has no cuDNN.
std::unique_ptr<AttentionLibrary> cudnn_attention();

}  // namespace plimsoll::kernels::cuda
