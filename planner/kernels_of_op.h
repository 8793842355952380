// The kernels of one op in the order in which they run: what each takes and gives back. From that
// follow the op's scratch and, for who replays an allocator, its blocks.
#pragma once

#include <algorithm>
#include <utility>

#include "planner/memory/scratch_blocks.h"
#include "planner/program/program_builder.h"

namespace plimsoll::planner {

class KernelsOfOp {
 public:
  explicit KernelsOfOp(ProgramBuilder& builder) : b_(builder) {}

  // A block of the op's own; its number.
  std::int32_t take(SymBytes bytes) {
    rise(bytes);
    sizes_.push_back(bytes);
    return events_.take(bytes);
  }
  // On the next stream of torch's pool.
  std::int32_t take_beside(SymBytes bytes) {
    rise(bytes);
    sizes_.push_back(bytes);
    return events_.take_beside(bytes);
  }
  void drop(std::int32_t number) {
    now_ -= sizes_[static_cast<std::size_t>(number)];
    events_.drop(number);
  }
  // Its GEMM's, where the op takes one (ModuleWriter::take_workspace).
  void workspace() { events_.workspace(); }
  // A tensor that the op writes.
  void birth(models::TensorId tensor, SymBytes bytes) {
    rise(bytes);
    born_ += bytes;
    events_.birth(tensor);
  }
  // To the op that was written last, whose operands count with all their bytes.
  void finish(OpBuilder op) {
    op.scratch(larger(Bytes(0), highest_ - born_));
    if (b_.keeps_blocks()) b_.blocks(std::move(events_));
  }

 private:
  void rise(SymBytes bytes) {
    now_ += bytes;
    highest_ = larger(highest_, now_);
  }
  ProgramBuilder& b_;
  BlockEvents events_;
  std::vector<SymBytes> sizes_;
  SymBytes now_, highest_, born_;
};

}  // namespace plimsoll::planner
