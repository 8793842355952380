// Rotary position embedding as Transformers writes it in Python.
#include <algorithm>

#include "planner/stacks/pytorch/block_writer.h"

namespace plimsoll::planner::pytorch {

// apply_rotary_pos_emb: x·cos + rotate_half(x)·sin. With r bytes of the result and c of x, the
// moments are r + c/2 + c (first product, negated half, their concatenation), r + c + r, and 3 r at
// the sum, the highest.
TensorId BlockWriter::rotate(const OperandNames& names, TensorId from, std::int64_t n, DType dtype,
                             DType rotated_dtype, TensorId also_read) {
  const TensorId rotated = make(names.rotated, n, rotated_dtype);
  op(names.rotated)
      .read(from)
      .read(also_read)
      .read(cos_[sliding_ ? 1 : 0])
      .read(sin_[sliding_ ? 1 : 0])
      .write(rotated)
      .scratch(std::max(bytes(n, rotated_dtype) * 2, bytes(n, dtype) + bytes(n / 2, dtype)));
  if (b_.keeps_blocks()) {
    BlockEvents events;
    const auto product = events.take(bytes(n, rotated_dtype));
    const auto half = events.take(bytes(n / 2, dtype)), joined = events.take(bytes(n, dtype));
    events.drop(half);
    events.take(bytes(n, rotated_dtype));
    events.drop(joined);
    events.birth(rotated);
    events.drop(product);
    b_.blocks(std::move(events));
  }
  return rotated;
}

// Its gradient: d·sin, of which two slice_backward of full size are made and added; d·cos; the sum.
// In x's dtype (c bytes; d has r) but for the products, which are made promoted and cast. Beside d
// stand at most the first product and both slices, 3 c, or the slices' sum, the second product and
// its cast, c + r + c.
TensorId BlockWriter::rotate_backward(const OperandNames& names, TensorId d_rotated, std::int64_t n,
                                      DType dtype, DType rotated_dtype) {
  const bool promotes = dtype != rotated_dtype;
  const Bytes c = bytes(n, dtype), r = promotes ? bytes(n, rotated_dtype) : Bytes(0);
  const TensorId product = temporary(names.grad_wide, n, dtype);
  op(names.rotated).read(d_rotated).read(sin_[sliding_ ? 1 : 0]).write(product).scratch(r);
  const TensorId d = temporary(names.grad, n, dtype);
  op(names.rotated)
      .read(d_rotated)
      .read(product)
      .read(cos_[sliding_ ? 1 : 0])
      .write(d)
      .scratch(std::max(c, r));
  if (b_.keeps_blocks())
    b_.blocks(rotate_backward_blocks(d_rotated, product, d, c, bytes(n / 2, dtype), r));
  return d;
}

// The second op of the above: both slices of the first product, their sum, the second product.
BlockEvents BlockWriter::rotate_backward_blocks(TensorId d_rotated, TensorId product, TensorId d,
                                                Bytes own, Bytes half, Bytes promoted) {
  BlockEvents events;
  const auto negated = events.take(half), first = events.take(own);
  events.drop(negated);
  const auto second = events.take(own);
  events.death(product);
  const auto sum = events.take(own);
  events.drop(first);
  events.drop(second);
  const auto wide = promoted > Bytes(0) ? events.take(promoted) : -1;
  const auto other = events.take(own);
  if (wide >= 0) events.drop(wide);
  events.death(d_rotated);
  events.birth(d);
  events.drop(sum);
  events.drop(other);
  return events;
}

}  // namespace plimsoll::planner::pytorch
