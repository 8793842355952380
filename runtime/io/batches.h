// Which tokens a rank trains on, micro-batch by micro-batch: a function of the step alone.
#pragma once

#include "runtime/io/tokens.h"

namespace plimsoll::runtime::io {

struct BatchShape {
  std::int64_t ranks = 1;
  std::int64_t micro_batches = 1;  // of a step (gradient accumulation)
  std::int64_t sequences = 1;  // of a rank's micro-batch
  std::int64_t length = 1;  // tokens of a sequence
  // Where a run goes on: steps before `first_step` have taken so many sequences, whoever shared
  // them.
  std::int64_t first_step = 0, taken = 0;
};

// A source of n tokens is cut into (n - 1) / length whole sequences, one after another; targets are
// the tokens that follow. A step takes ranks · micro_batches · sequences of them in the order of
// the source, micro-batch by micro-batch and in each rank by rank, as llm.c does: so the tokens of
// a step depend on their number and not on how many ranks share them. After the last sequence comes
// the first again; up to length tokens at the end of the source are never seen.
//
// A source that is shorter than one sequence is one, filled up with id 0; the targets from its last
// token on are kernels::kIgnoreIndex.
class Batches {
 public:
  // Keeps `source`. Error{bad_input}: a shape that is not of positive numbers, or overflows.
  Batches(const TokenSource& source, const BatchShape& shape);

  // ids and targets [sequences · length] of one micro-batch; from several threads at once. `step`
  // counts from 0. Errors as TokenSource::read.
  void fill(std::int64_t step, std::int64_t micro_batch, std::int64_t rank,
            std::span<std::int32_t> ids, std::span<std::int32_t> targets) const;

  // Sequences that all ranks have taken in all steps before `step`.
  std::int64_t taken_before(std::int64_t step) const;
  // Number of a micro-batch's first sequence among all of its step's, on all ranks.
  std::int64_t first_sequence(std::int64_t micro_batch, std::int64_t rank) const;
  // Targets that are not ignored: of one micro-batch of one rank, the same for all.
  std::int64_t counted_targets() const { return shape_.sequences * counted_; }
  std::int64_t length() const { return shape_.length; }
  std::int64_t sequences() const { return sequences_; }  // of the source

 private:
  const TokenSource& source_;
  BatchShape shape_;
  std::int64_t sequences_ = 1;
  std::int64_t counted_ = 0;  // of a sequence
};

}  // namespace plimsoll::runtime::io
