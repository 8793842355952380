// A tensor owns its memory; whoever holds it last ends its life.
#pragma once

#include <utility>

#include "kernels/tensor_view.h"
#include "runtime/ledger.h"

namespace plimsoll::runtime {

using kernels::ConstTensorView;
using kernels::Extents;
using kernels::TensorView;

class Memory;

// Move-only. A default one is none. It keeps the name that it was allocated under, whatever takes
// over its storage (models/decisions/names.h).
class Tensor {
 public:
  Tensor() = default;
  Tensor(Tensor&& other) noexcept { swap(other); }
  Tensor& operator=(Tensor&& other) noexcept {
    Tensor(std::move(other)).swap(*this);
    return *this;
  }
  ~Tensor() { reset(); }

  explicit operator bool() const { return memory_ != nullptr; }
  TensorView view() { return view_; }
  ConstTensorView view() const { return view_; }
  // The same elements as rows of `width`.
  TensorView rows_of(std::int64_t width) { return view_.as({view_.elements() / width, width}); }
  DType dtype() const { return view_.dtype; }
  Bytes bytes() const { return storage(Count(view_.elements()), view_.dtype); }
  void reset() noexcept;  // gives the memory back

 private:
  friend class Memory;
  void swap(Tensor& other) noexcept {
    std::swap(memory_, other.memory_);
    std::swap(entry_, other.entry_);
    std::swap(view_, other.view_);
  }
  Memory* memory_ = nullptr;
  Ledger::Entry entry_ = 0;
  TensorView view_;
};

}  // namespace plimsoll::runtime
