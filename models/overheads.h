// Device memory that no tensor of a model accounts for (models/specs/overheads.json): contexts,
// library workspaces, NCCL. Ranges with a source; what they multiply is in `per`.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "models/cluster_spec.h"

namespace plimsoll::models {

struct Overhead {
  // Who sees it: `device` is outside the framework's allocator, `allocator` inside it, `count` is a
  // plain factor for another entry.
  enum class Where : std::uint8_t { device, allocator, count };
  struct Range {
    std::int64_t low, typical, high;  // bytes, or a number where `where` is `count`
  };

  std::string name;  // "context", "cublas_workspace", "nccl_channels", …
  std::optional<Range> range;  // absent: only `formula` says
  Where where = Where::device;
  std::string per;  // "process", "thread and stream", "communicator", …
  std::string basis;  // "derived", "measured", "assumed"
  std::string source;
  std::string formula;  // "" where the range is all
  std::string note;
};

// The entries that hold for this stack ("pytorch", "plimsoll", …) on this GPU, one for each name,
// sorted by name: an entry for the GPU's family goes before one for its vendor and that before
// "any"; likewise the stack. `torch_version`: "2.11", "2.11.0+cu130"; Error{bad_input} for others.
std::vector<Overhead> overheads_of(std::string_view stack, const Gpu& gpu,
                                   std::string_view torch_version);

// The entry called so; nullptr: none holds.
const Overhead* find_overhead(const std::vector<Overhead>& overheads, std::string_view name);

}  // namespace plimsoll::models
