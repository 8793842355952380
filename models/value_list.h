// The values of a block (models/block.h).
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>

namespace plimsoll::models {

using ValueId = std::int16_t;
inline constexpr ValueId kNoValue = -1;

// A few ids in place.
class ValueList {
 public:
  ValueList() = default;
  ValueList(std::initializer_list<ValueId> ids);  // at most 8
  void push_back(ValueId id);
  const ValueId* begin() const { return ids_.data(); }
  const ValueId* end() const { return ids_.data() + size_; }
  std::size_t size() const { return size_; }
  bool empty() const { return size_ == 0; }
  ValueId operator[](std::size_t i) const { return i < size_ ? ids_[i] : kNoValue; }

 private:
  std::array<ValueId, 8> ids_{};
  std::uint8_t size_ = 0;
};

}  // namespace plimsoll::models
