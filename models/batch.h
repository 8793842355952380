// One micro-batch of a rank, and how many a step takes.
#pragma once

#include <cstdint>

#include "models/base/quantity.h"

namespace plimsoll::models {

// What the rows of a micro-batch hold. full: tokens that are all read. padded: some are padding,
// which an attention mask says. flattened: one row of all samples behind each other, which
// position_ids tell apart (padding-free).
enum class Rows : std::uint8_t { full, padded, flattened };

struct Batch {
  std::int64_t seq_len = 4096;
  std::int64_t micro_batch = 1;  // sequences per GPU and micro-step
  std::int64_t grad_accum = 1;  // micro-steps per optimizer step
  // Rows::flattened: tokens of the row and samples in it, where these are not micro_batch of
  // seq_len each (0: they are).
  std::int64_t row_tokens = 0, row_samples = 0;
  // Rows::padded: tokens that are no padding (0: not known).
  std::int64_t real_tokens = 0;
  std::int64_t tokens() const {
    return row_tokens > 0 ? row_tokens : checked_multiply(seq_len, micro_batch);
  }
  std::int64_t samples() const { return row_samples > 0 ? row_samples : micro_batch; }
  // Samples of several lengths make it: another micro_batch or seq_len is not known.
  bool is_drawn() const { return row_tokens > 0 || real_tokens > 0; }
  bool operator==(const Batch&) const = default;
};

}  // namespace plimsoll::models
