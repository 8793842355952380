// Checkpoints in MXFP4: two values a byte, a scale of a byte for each 32 (OCP Microscaling Formats,
// 1.0). Transformers trains on what it unpacks them to as it loads them.
#pragma once

#include <cstdint>
#include <string_view>

namespace plimsoll::models {

inline constexpr std::int64_t kMxfp4Block = 32;

// gpt-oss: the experts of all its published checkpoints are packed so.
inline bool is_published_in_mxfp4(std::string_view model_type) {
  return model_type == "gpt_oss";
}

}  // namespace plimsoll::models
