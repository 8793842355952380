// The releases whose source the stacks were read from; plans name them, other ones are refused.
#pragma once

#include <string_view>

namespace plimsoll::models {

inline constexpr std::string_view kTorchVersion = "2.11.0";
inline constexpr std::string_view kDeepSpeedVersion = "0.19.8";
inline constexpr std::string_view kTransformersVersion = "5.17.0";

}  // namespace plimsoll::models
