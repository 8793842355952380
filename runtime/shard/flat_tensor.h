// Parts of a unit, one after another in one allocation.
#pragma once

#include <utility>

#include "runtime/shard/unit_layout.h"
#include "runtime/worker.h"

namespace plimsoll::runtime::shard {

class FlatTensor {
 public:
  // Elements and dtype of each part; 0: the part is not in it.
  struct PartSize {
    std::int64_t elements = 0;
    DType dtype = DType::fp32;
  };
  using Sizes = std::array<PartSize, kParts>;

  FlatTensor() = default;
  FlatTensor(Memory& memory, std::string name, Category category, const Sizes& sizes);

  explicit operator bool() const { return static_cast<bool>(storage_); }
  TensorView part(Part p) { return views_[static_cast<std::size_t>(p)]; }
  ConstTensorView part(Part p) const { return views_[static_cast<std::size_t>(p)]; }
  // To hand to Op::consume; this becomes none.
  Tensor take() {
    views_ = {};
    return std::move(storage_);
  }

 private:
  Tensor storage_;
  std::array<TensorView, kParts> views_;
};

}  // namespace plimsoll::runtime::shard
