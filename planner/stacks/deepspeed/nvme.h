// What goes to files beyond the host's memory (ZeRO-Infinity), and what waits for it on the way.
//
// Source: deepspeed 0.19.8, runtime/swap_tensor/ and runtime/zero/stage3.py, each found in real
// runs (tests/golden/deepspeed_nvme.json).
#pragma once

#include <cstdint>
#include <vector>

#include "planner/stacks/deepspeed/layout.h"

namespace plimsoll::planner::deepspeed {

// swap_tensor/utils.py, AIO_ALIGNED_BYTES with aio.intra_op_parallelism 1: a file's size is a
// multiple of this. MIN_AIO_BYTES, and aio.block_size: what is smaller stays in memory.
inline constexpr Bytes kFileAlignment = Bytes(1024), kLeastFile = Bytes(1 << 20);

inline Bytes in_file(std::int64_t elements, DType dtype) {
  return round_up(storage(Count(elements), dtype), kFileAlignment.value());
}
inline bool goes_to_file(std::int64_t elements, DType dtype) {
  return storage(Count(elements), dtype) >= kLeastFile;
}

// Of one rank's fp32 gradients of a sub-group in files. optimizer_utils.py,
// _adjust_for_misaligned_lengths: a small one stays on the device until the step; of another the
// file takes whole multiples of kFileAlignment, and what is left over is a view that keeps all of
// it on the device.
inline bool gradient_stays(std::int64_t part, DType state) {
  return !goes_to_file(part, state) ||
         storage(Count(part), state).value() % kFileAlignment.value() != 0;
}

// A bucket's gradients on their way: what lies on the device at most, and what stays of it. Parts
// of one rank in the order of the backward, which leave in that of the parameters; counted in
// elements of the gradients' dtype.
class OnTheWay {
 public:
  OnTheWay(DType gradients, DType state) : state_(state), wide_(bits(state) / bits(gradients)) {}
  void add(std::int64_t part) { parts_.push_back(part); }
  void clear() { parts_.clear(); }
  std::int64_t most() const;
  std::int64_t staying() const;

 private:
  DType state_;
  std::int64_t wide_;
  std::vector<std::int64_t> parts_;
};

// Throws Error{bad_input} where DeepSpeed's buffers are too small, or too few, for the model.
void refuse_buffers(const FlatLayout& layout, const Engine& engine);

}  // namespace plimsoll::planner::deepspeed
