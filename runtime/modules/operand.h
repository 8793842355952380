// How a module is handed what it reads: a view, and where it is the last reader, the owner too.
#pragma once

#include <utility>

#include "runtime/worker.h"

namespace plimsoll::runtime {

struct Operand {
  ConstTensorView view;
  Tensor* owner = nullptr;  // dies with this reader

  Operand not_last() const { return {view, nullptr}; }
  // In the op that reads it: it dies when the op is done.
  void read_by(Op& op) const {
    if (owner != nullptr) op.consume(std::move(*owner));
  }
};
inline Operand reading(const Tensor& tensor) {
  return {tensor.view()};
}
inline Operand reading_last(Tensor& tensor) {
  return {tensor.view(), &tensor};
}
inline Operand reading(Tensor& tensor, bool last) {
  return {tensor.view(), last ? &tensor : nullptr};
}

// The gradient of a branch's result: a tensor of its own, or the stream's, which lives on.
struct Gradient {
  Tensor own;
  ConstTensorView view;
  static Gradient of(Tensor tensor) {
    const ConstTensorView view = tensor.view();
    return {std::move(tensor), view};
  }
  Operand read(bool last) { return {view, last && own ? &own : nullptr}; }
};

}  // namespace plimsoll::runtime
