// All that a kernel sees of a tensor: where it is, its shape, its dtype. Contiguous, row-major.
#pragma once

#include <array>
#include <cstddef>
#include <initializer_list>
#include <type_traits>

#include "models/base/dtype.h"

namespace plimsoll::kernels {

// Lengths of at most four axes.
struct Extents {
  std::array<std::int64_t, 4> axes{};
  int rank = 0;

  Extents() = default;
  Extents(std::initializer_list<std::int64_t> lengths) {
    check(lengths.size() <= 4, ErrorKind::internal, "a view has at most four axes");
    for (const std::int64_t length : lengths) axes[static_cast<std::size_t>(rank++)] = length;
  }
  std::int64_t operator[](int axis) const { return axes[static_cast<std::size_t>(axis)]; }
  std::int64_t elements() const {
    std::int64_t n = 1;
    for (int i = 0; i < rank; ++i) n = checked_multiply(n, (*this)[i]);
    return n;
  }
  bool operator==(const Extents&) const = default;
};

// Points, owns nothing. `Data` is void (the kernel may write) or const void. A default view is
// "none": what an operand that may be left out is when it is left out.
template <class Data>
struct BasicView {
  Data* data = nullptr;
  DType dtype = DType::fp32;
  Extents shape{0};

  BasicView() = default;
  BasicView(Data* where, DType type, Extents extents) : data(where), dtype(type), shape(extents) {}
  // What may be written may be read.
  template <class Other>
  requires(std::is_const_v<Data> && !std::is_const_v<Other>)
      BasicView(const BasicView<Other>& other)
      : data(other.data), dtype(other.dtype), shape(other.shape) {}

  explicit operator bool() const { return data != nullptr; }
  std::int64_t elements() const { return shape.elements(); }
  // The same elements under other lengths.
  BasicView as(Extents lengths) const {
    check(lengths.elements() == elements(), ErrorKind::internal,
          "a view keeps its number of elements");
    return {data, dtype, lengths};
  }
  // `count` rows of the first axis, from `first` on.
  BasicView rows(std::int64_t first, std::int64_t count) const {
    check(first >= 0 && count >= 0 && first + count <= shape[0], ErrorKind::internal,
          "rows lie inside the view");
    Extents lengths = shape;
    const std::int64_t row = shape[0] == 0 ? 0 : elements() / shape[0];
    lengths.axes[0] = count;
    using Byte = std::conditional_t<std::is_const_v<Data>, const std::byte, std::byte>;
    return {static_cast<Byte*>(data) + storage(Count(first * row), dtype).value(), dtype, lengths};
  }
};
using TensorView = BasicView<void>;
using ConstTensorView = BasicView<const void>;

// Columns of each row of a contiguous [rows, stride] tensor: GPT-2 keeps q, k and v side by side in
// one. A whole tensor is all its columns. Heads may lie apart (GPT-NeoX has q, k and v of each head
// side by side): `width` counts what belongs to the heads.
template <class Data>
struct BasicColumns {
  BasicView<Data> tensor;
  std::int64_t first = 0;
  std::int64_t width = 0;
  std::int64_t step = 0;  // from one head to the next; 0: heads stand side by side

  BasicColumns() = default;
  BasicColumns(BasicView<Data> whole) : BasicColumns(whole, 0, 0) {
    width = tensor.shape[0] == 0 ? 0 : tensor.elements() / tensor.shape[0];
  }
  BasicColumns(BasicView<Data> of, std::int64_t from, std::int64_t columns,
               std::int64_t between_heads = 0)
      : tensor(of), first(from), width(columns), step(between_heads) {}
  template <class Other>
  requires(std::is_const_v<Data> && !std::is_const_v<Other>)
      BasicColumns(const BasicView<Other>& whole)
      : BasicColumns(BasicView<Data>(whole)) {}
  template <class Other>
  requires(std::is_const_v<Data> && !std::is_const_v<Other>)
      BasicColumns(const BasicColumns<Other>& other)
      : tensor(other.tensor), first(other.first), width(other.width), step(other.step) {}

  std::int64_t rows() const { return tensor.shape[0]; }
  std::int64_t stride() const { return rows() == 0 ? 0 : tensor.elements() / rows(); }
  bool whole() const { return first == 0 && step == 0 && width == stride(); }
  // Of heads of `d` elements: from one to the next, and one behind the last one's end.
  std::int64_t head_step(std::int64_t d) const { return step > 0 ? step : d; }
  std::int64_t end(std::int64_t d) const { return first + (width / d - 1) * head_step(d) + d; }
};
using Columns = BasicColumns<void>;
using ConstColumns = BasicColumns<const void>;

}  // namespace plimsoll::kernels
