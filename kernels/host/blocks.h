// How host kernels touch memory: in blocks that are widened to fp32, computed on, and rounded once.
#pragma once

#include <cmath>
#include <span>

#include "kernels/kernel_table.h"
#include "kernels/number.h"

namespace plimsoll::kernels::host {

// Elements of a block; also the widest head of attention.
inline constexpr std::int64_t kBlock = 512;

// `n` elements from `first` on, to or from fp32. Error{internal}: a dtype that is no storage type.
void read(ConstTensorView from, std::int64_t first, std::int64_t n, float* to);
void write(const float* from, std::int64_t first, std::int64_t n, TensorView to);
float read_one(ConstTensorView from, std::int64_t at);
void write_one(float value, std::int64_t at, TensorView to);

// Of a view whose dtype the signature fixes.
float* fp32_of(TensorView view);
const float* fp32_of(ConstTensorView view);
double* fp64_of(TensorView view);
std::int32_t* int32_of(TensorView view);
const std::int32_t* int32_of(ConstTensorView view);

// Visits [0, n) in blocks: visit(first, count), count <= kBlock.
template <class Visit>
void in_blocks(std::int64_t n, Visit visit) {
  for (std::int64_t first = 0; first < n; first += kBlock)
    visit(first, std::min(kBlock, n - first));
}

// Throws Error{internal}: "<op>: <what>".
inline void expect(bool ok, const char* op, const char* what, Where where = Where::current()) {
  check(
      ok, ErrorKind::internal, [&] { return std::string(op) + ": " + what; }, where);
}
inline std::int64_t width_of(const ConstTensorView& view) {
  return view.shape[0] == 0 ? 0 : view.elements() / view.shape[0];
}

// Error{internal}: lengths or dtypes that no optimizer takes (kernels/optimizer_kernels.h).
void expect_tensors(const OptimizerTensors& tensors, const char* op);
// Error{internal}: of low_rank_kernels.h.
void expect_gram(const ConstTensorView& x, const TensorView& gram);
void expect_basis(const ConstTensorView& vectors, const TensorView& basis);
// Null: this build has no LAPACK.
Eigenvectors eigenvectors();
// The same of a packed weight with the elements of `to` (kernels/packed_weights.h).
void expect_packed(const PackedWeight& weight, const TensorView& to, const char* op);
// Of casts to 8 bits and their GEMMs (kernels/float8_kernels.h).
void expect_float8(DType dtype, const char* op);
void expect_cast(const ConstTensorView& x, const ConstTensorView& scale, const TensorView& values,
                 const TensorView& transposed);
void expect_product(const Float8Matrix& a, const Float8Matrix& b, const ConstTensorView& bias,
                    const TensorView& y);

// Whether a matrix, or its transpose, has `rows` rows and `columns` columns; no rows have no width.
inline bool fits(const ConstColumns& x, bool transposed, std::int64_t rows, std::int64_t columns) {
  if (transposed) std::swap(rows, columns);
  return x.rows() == rows && (rows == 0 || x.width == columns);
}

// The sum of a[i] · b[i] in a fixed order of eight lanes.
inline float dot(const float* a, const float* b, std::int64_t n) {
  float lane[8] = {};
  std::int64_t i = 0;
  for (; i + 8 <= n; i += 8)
    for (int j = 0; j < 8; ++j) lane[j] += a[i + j] * b[i + j];
  float rest = 0;
  for (; i < n; ++i) rest += a[i] * b[i];
  return (((lane[0] + lane[4]) + (lane[2] + lane[6])) +
          ((lane[1] + lane[5]) + (lane[3] + lane[7]))) +
         rest;
}
// y += a · x.
inline void add_scaled(float a, const float* x, std::int64_t n, float* y) {
  for (std::int64_t i = 0; i < n; ++i) y[i] += a * x[i];
}

// Multiplies `n` values, of which the first is element `first` of the op's tensor, by 0 or
// 1 / (1 - rate).
void drop(const Dropout& dropout, std::int64_t first, std::int64_t n, float* values);

// The same, one at a time: neighbours share the block that was drawn last.
class Dropper {
 public:
  explicit Dropper(const Dropout& dropout);
  float operator()(std::int64_t i, float v) {
    if (dropout_.rate <= 0) return v;
    const std::uint64_t at = dropout_.first_element + static_cast<std::uint64_t>(i);
    if (at / 4 != drawn_) {
      drawn_ = at / 4;
      random_ = random_block(dropout_.key, drawn_);
    }
    return random_[at % 4] < bound_ ? 0.0f : v * factor_;
  }

 private:
  Dropout dropout_;
  std::uint64_t bound_;
  float factor_;
  std::uint64_t drawn_ = ~std::uint64_t{0};
  Philox random_{};
};

// Each part of the table stands beside its kernels.
void add_embedding(KernelTable& table);
void add_norms(KernelTable& table);
void add_linear(KernelTable& table);
void add_rotary(KernelTable& table);
void add_activations(KernelTable& table);
void add_flash_attention(KernelTable& table);
void add_eager_attention(KernelTable& table);
void add_experts(KernelTable& table);
void add_loss(KernelTable& table);
void add_optimizers(KernelTable& table);
void add_low_rank(KernelTable& table);
void add_gradient_norm(KernelTable& table);
void add_copies(KernelTable& table);
void add_packed(KernelTable& table);
void add_float8(KernelTable& table);

}  // namespace plimsoll::kernels::host
