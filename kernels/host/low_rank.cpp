#include "kernels/host/blocks.h"

namespace plimsoll::kernels::host {

namespace {

// Rows whose sums are made side by side: each in the order of the columns.
constexpr std::int64_t kRows = 8;

// out[j] = row i · row first + j, of `rows` rows of x [m, n].
void row_products(ConstTensorView x, std::int64_t i, std::int64_t first, std::int64_t rows,
                  double* out) {
  const std::int64_t n = x.shape[1];
  double sum[kRows] = {};
  in_blocks(n, [&](std::int64_t at, std::int64_t count) {
    float a[kBlock], b[kBlock];
    static thread_local double side[kBlock][kRows];
    read(x, i * n + at, count, a);
    for (std::int64_t j = 0; j < kRows; ++j) {
      if (j < rows) read(x, (first + j) * n + at, count, b);
      for (std::int64_t l = 0; l < count; ++l)
        side[l][j] = j < rows ? static_cast<double>(b[l]) : 0.0;
    }
    for (std::int64_t l = 0; l < count; ++l)
      for (std::int64_t j = 0; j < kRows; ++j) sum[j] += static_cast<double>(a[l]) * side[l][j];
  });
  std::copy_n(sum, rows, out);
}

void products_of_rows(ConstTensorView x, double* gram) {
  const std::int64_t k = x.shape[0];
  for (std::int64_t i = 0; i < k; ++i)
    for (std::int64_t first = i; first < k; first += kRows)
      row_products(x, i, first, std::min(kRows, k - first), gram + i * k + first);
}

// gram[i, j] += x[row, i] · x[row, j], row after row.
void products_of_columns(ConstTensorView x, double* gram) {
  const std::int64_t k = x.shape[1];
  std::fill_n(gram, k * k, 0.0);
  for (std::int64_t row = 0; row < x.shape[0]; ++row)
    in_blocks(k, [&](std::int64_t at, std::int64_t count) {
      float right[kBlock];
      read(x, row * k + at, count, right);
      for (std::int64_t i = 0; i < at + count; ++i) {
        const auto left = static_cast<double>(read_one(x, row * k + i));
        for (std::int64_t j = std::max(i - at, std::int64_t{0}); j < count; ++j)
          gram[i * k + at + j] += left * static_cast<double>(right[j]);
      }
    });
}

void gram(ConstTensorView x, TensorView to) {
  expect_gram(x, to);
  double* g = fp64_of(to);
  const bool columns = x.shape[0] >= x.shape[1];
  if (columns)
    products_of_columns(x, g);
  else
    products_of_rows(x, g);
  const std::int64_t k = to.shape[0];
  for (std::int64_t i = 0; i < k; ++i)
    for (std::int64_t j = 0; j < i; ++j) g[i * k + j] = g[j * k + i];
}

void basis(ConstTensorView vectors, TensorView to) {
  expect_basis(vectors, to);
  const std::int64_t rank = to.shape[0], k = to.shape[1];
  const auto* from = static_cast<const double*>(vectors.data);
  for (std::int64_t i = 0; i < rank; ++i) {
    const double* v = from + (rank - 1 - i) * k;
    std::int64_t largest = 0;
    for (std::int64_t j = 1; j < k; ++j)
      if (std::fabs(v[j]) > std::fabs(v[largest])) largest = j;
    const double sign = v[largest] < 0 ? -1 : 1;
    in_blocks(k, [&](std::int64_t at, std::int64_t count) {
      float row[kBlock];
      for (std::int64_t j = 0; j < count; ++j) row[j] = static_cast<float>(sign * v[at + j]);
      write(row, i * k + at, count, to);
    });
  }
}

}  // namespace

void expect_gram(const ConstTensorView& x, const TensorView& gram) {
  const std::int64_t k = x.shape.rank == 2 ? std::min(x.shape[0], x.shape[1]) : 0;
  expect(k > 0 && gram.dtype == DType::fp64 && gram.shape.rank == 2 && gram.shape[0] == k &&
             gram.shape[1] == k,
         "gram", "the products of a matrix's shorter axis are fp64");
}

void expect_basis(const ConstTensorView& vectors, const TensorView& basis) {
  expect(vectors.dtype == DType::fp64 && basis.shape.rank == 2 && vectors.shape.rank == 2 &&
             vectors.shape[1] == basis.shape[1] && vectors.shape[0] >= basis.shape[0],
         "basis", "it is some of the vectors");
}

void add_low_rank(KernelTable& table) {
  table.gram = gram;
  table.eigenvectors = eigenvectors();
  table.basis = basis;
}

}  // namespace plimsoll::kernels::host
