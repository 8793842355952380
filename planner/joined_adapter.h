// An adapter of linears that another program's code keeps as one.
#pragma once

#include <array>
#include <cstdint>

namespace plimsoll::planner {

// LoRA's of modules that another program's code joins (LitGPT's LoRAQKVLinear): how wide those of
// them are that have adapters, in their order, and the rank of each. None: no part has any.
struct JoinedAdapter {
  std::array<std::int64_t, 3> widths{};
  std::int64_t parts = 0, rank = 0;
  bool grouped = false;  // all as wide: one convolution
  bool pads = false;  // some have none
  std::int64_t width() const { return widths[0] + widths[1] + widths[2]; }
  bool operator==(const JoinedAdapter&) const = default;
};

}  // namespace plimsoll::planner
