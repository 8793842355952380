// Where a unit's states are loaded from.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

namespace plimsoll::runtime::shard {

// Whole values of a parameter on the host, from element `first` on.
using Reader = std::function<void(std::size_t parameter, std::int64_t first, std::span<float> to)>;
// The bytes of a packed one (packed_bytes.h), where the source has them; else none.
using PackedReader = std::function<std::vector<std::byte>(std::size_t parameter)>;

}  // namespace plimsoll::runtime::shard
