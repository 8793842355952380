// What PYTORCH_CUDA_ALLOC_CONF asks of torch's caching allocator.
//
// Source: pytorch c10/core/AllocatorConfig.{h,cpp} and c10/cuda/CUDAAllocatorConfig.h (torch 2.11).
#pragma once

#include <array>
#include <optional>
#include <string>
#include <string_view>

#include "models/base/quantity.h"

namespace plimsoll::models {

struct AllocatorConf {
  // One segment for each stream and pool, which grows by pages, instead of many.
  bool expandable_segments = false;
  // Blocks of this size or more are not split, and serve requests of about their own size only.
  std::optional<Bytes> max_split_size;
  // By how much such a block may be larger than what it serves.
  Bytes max_non_split_rounding = 20_MiB;
  // Requests are rounded up to one of so many steps from one power of two to the next; 0 and 1: not
  // at all. Of sizes below 2 MiB, below 4 MiB … from 32 GiB on.
  std::array<std::int64_t, 16> roundup_power2_divisions{};
  bool operator==(const AllocatorConf&) const = default;

  std::int64_t divisions_of(std::int64_t bytes) const;
};

// Torch's own syntax, "expandable_segments:True,max_split_size_mb:128". Keys that change nothing in
// the memory of a training step are read and leave nothing behind. Throws Error{bad_input} for what
// torch would not take, Error{unsupported} for what would change memory in ways not modelled;
// messages begin with `what`, the name of the option or file.
AllocatorConf allocator_conf_from(std::string_view text, std::string_view what);

// The shortest text of the same effect, in one order of keys; nothing where it is torch's default.
std::optional<std::string> text_of(const AllocatorConf& conf);

}  // namespace plimsoll::models
