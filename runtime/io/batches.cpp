#include "runtime/io/batches.h"

#include <algorithm>

#include "kernels/attention_kernels.h"
#include "models/base/quantity.h"

namespace plimsoll::runtime::io {

Batches::Batches(const TokenSource& source, const BatchShape& shape)
    : source_(source), shape_(shape) {
  const auto positive = [](std::int64_t n, const char* what) {
    check(n >= 1, ErrorKind::bad_input, [&] {
      return std::string(what) + " is " + std::to_string(n) + ": at least 1 is needed";
    });
  };
  positive(shape.ranks, "the number of ranks");
  positive(shape.micro_batches, "the number of micro-batches");
  positive(shape.sequences, "the micro-batch");
  positive(shape.length, "the sequence length");
  (void)checked_multiply(shape.sequences, shape.length);
  check(shape.first_step >= 0 && shape.taken >= 0, ErrorKind::bad_input,
        "a run goes on from its beginning at the earliest");
  const std::int64_t followed = source.tokens() - 1;  // tokens that have a next one
  sequences_ = std::max<std::int64_t>(1, followed / shape.length);
  counted_ = std::min(followed, shape.length);
}

std::int64_t Batches::first_sequence(std::int64_t micro_batch, std::int64_t rank) const {
  return (micro_batch * shape_.ranks + rank) * shape_.sequences;
}

std::int64_t Batches::taken_before(std::int64_t step) const {
  const std::int64_t in_step =
      checked_multiply(checked_multiply(shape_.micro_batches, shape_.ranks), shape_.sequences);
  return checked_add(shape_.taken, checked_multiply(step - shape_.first_step, in_step));
}

void Batches::fill(std::int64_t step, std::int64_t micro_batch, std::int64_t rank,
                   std::span<std::int32_t> ids, std::span<std::int32_t> targets) const {
  const auto length = static_cast<std::size_t>(shape_.length);
  check(std::ssize(ids) == shape_.sequences * shape_.length && targets.size() == ids.size(),
        ErrorKind::internal, "a micro-batch of another shape");
  check(step >= shape_.first_step && micro_batch >= 0 && micro_batch < shape_.micro_batches &&
            rank >= 0 && rank < shape_.ranks,
        ErrorKind::internal, "no such micro-batch");
  const std::int64_t first = checked_add(taken_before(step), first_sequence(micro_batch, rank));
  const auto counted = static_cast<std::size_t>(counted_);
  for (std::int64_t s = 0; s < shape_.sequences; ++s) {
    const std::int64_t at = (first + s) % sequences_ * shape_.length;
    const auto row = static_cast<std::size_t>(s) * length;
    const auto row_ids = ids.subspan(row, length), row_targets = targets.subspan(row, length);
    const std::size_t there = std::min(length, counted + 1);
    source_.read(at, row_ids.first(there));
    source_.read(at + 1, row_targets.first(counted));
    std::ranges::fill(row_ids.subspan(there), 0);
    std::ranges::fill(row_targets.subspan(counted), kernels::kIgnoreIndex);
  }
}

}  // namespace plimsoll::runtime::io
