// GaLore's kernels against calculations by hand.
#include <doctest/doctest.h>

#include <limits>

#include "kernels/kernel_table.h"
#include "models/decisions/low_rank.h"
#include "tests/kernels/operands.h"

namespace plimsoll::kernels::test {
namespace {

std::vector<double> doubles(const Tensor& t) {
  const auto* from = static_cast<const double*>(static_cast<const void*>(t.bytes.data()));
  return {from, from + t.elements()};
}
Tensor fp64(Extents shape, const std::vector<double>& values) {
  Tensor t;
  t.dtype = DType::fp64;
  t.shape = shape;
  t.bytes.resize(values.size() * sizeof(double));
  std::memcpy(t.bytes.data(), values.data(), t.bytes.size());
  return t;
}
Tensor scratch(std::int64_t k, std::int64_t rank) {
  return {{models::decisions::eigenvector_scratch(models::Device::cpu, k, rank).value()},
          DType::uint8};
}

TEST_CASE("products are of the shorter axis") {
  const KernelTable& k = host_kernels();
  for (const DType dtype : kStorage) {
    // [1 2 3; 4 5 6]: 1 + 4 + 9, 4 + 10 + 18, 16 + 25 + 36.
    const Tensor wide({2, 3}, dtype, {1, 2, 3, 4, 5, 6});
    Tensor gram = fp64({2, 2}, {9, 9, 9, 9});
    k.gram(wide, gram);
    CHECK(doubles(gram) == std::vector<double>{14, 32, 32, 77});
    // Its transpose, by the columns.
    k.gram(Tensor({3, 2}, dtype, {1, 4, 2, 5, 3, 6}), gram);
    CHECK(doubles(gram) == std::vector<double>{14, 32, 32, 77});
    // Square: by the columns. [1 2; 3 4]: 1 + 9, 2 + 12, 4 + 16.
    k.gram(Tensor({2, 2}, dtype, {1, 2, 3, 4}), gram);
    CHECK(doubles(gram) == std::vector<double>{10, 14, 14, 20});
  }
}

// Sides that are no multiples of a block's rows, or of 512 columns: every product is the same from
// either side.
TEST_CASE("products by rows are those by columns") {
  const KernelTable& k = host_kernels();
  for (const std::int64_t rows : {1, 7, 8, 9, 23})
    for (const std::int64_t columns : {24, 511, 512, 513, 1030}) {
      const Tensor x = drawn({rows, columns}, DType::fp32, 5);
      Tensor turned({columns, rows}, DType::fp32);
      for (std::int64_t i = 0; i < rows; ++i)
        for (std::int64_t j = 0; j < columns; ++j) turned.set(j * rows + i, x.at(i * columns + j));
      const std::vector<double> none(static_cast<std::size_t>(rows * rows));
      Tensor by_rows = fp64({rows, rows}, none), by_columns = by_rows;
      k.gram(x, by_rows);
      k.gram(turned, by_columns);
      CAPTURE(rows);
      CAPTURE(columns);
      CHECK(by_rows == by_columns);
      double last = 0;
      for (std::int64_t j = 0; j < columns; ++j) last += x.at((rows - 1) * columns + j) * x.at(j);
      CHECK(doubles(by_rows)[static_cast<std::size_t>(rows - 1)] == last);
    }
}

TEST_CASE("a basis is the last vectors first, the largest element of each positive") {
  const KernelTable& k = host_kernels();
  // Of equal magnitudes the first decides.
  const Tensor vectors = fp64({3, 3}, {0.5, -0.25, 0.125, -2, 2, 1, 7, 7, 7});
  for (const DType dtype : kStorage) {
    Tensor basis({2, 3}, dtype);
    k.basis(vectors, basis);
    CHECK(basis.values() == std::vector<double>{2, -2, -1, 0.5, -0.25, 0.125});
  }
}

TEST_CASE("eigenvectors are those of the largest eigenvalues, and only the upper half is read" *
          doctest::skip(host_kernels().eigenvectors == nullptr)) {
  const KernelTable& k = host_kernels();
  // 75 u·uᵀ + 50 v·vᵀ + 25 w·wᵀ with u = (3, 4, 0) / 5, v = (0, 0, 1), w = (4, -3, 0) / 5.
  Tensor matrix = fp64({3, 3}, {43, 24, 0, 70, 57, 0, 80, 90, 50});
  Tensor work = scratch(3, 2), basis({2, 3}, DType::fp32);
  k.eigenvectors(matrix, 2, work);
  k.basis(matrix, basis);
  CHECK(deviation(basis.values(), {0.6, 0.8, 0, 0, 0, 1}) < 1e-6);
  // Sorted by size, not by magnitude: of diag(-5, 1, 3) the largest is 3.
  Tensor diagonal = fp64({3, 3}, {-5, 0, 0, 0, 1, 0, 0, 0, 3});
  Tensor first({1, 3}, DType::fp32), little = scratch(3, 1);
  k.eigenvectors(diagonal, 1, little);
  k.basis(diagonal, first);
  CHECK(first.values() == std::vector<double>{0, 0, 1});
}

TEST_CASE("what has no eigenvectors, and a scratch that is too small, are refused" *
          doctest::skip(host_kernels().eigenvectors == nullptr)) {
  const KernelTable& k = host_kernels();
  Tensor work = scratch(2, 1);
  for (const double bad :
       {std::numeric_limits<double>::infinity(), std::numeric_limits<double>::quiet_NaN()}) {
    Tensor matrix = fp64({2, 2}, {bad, 0, 0, 1});
    CHECK_THROWS_WITH_AS(k.eigenvectors(matrix, 1, work),
                         "a gradient is not finite, and has no directions to project to", Error);
  }
  Tensor matrix = fp64({2, 2}, {2, 0, 0, 1});
  Tensor small({work.elements() - 1}, DType::uint8);
  CHECK_THROWS_AS(k.eigenvectors(matrix, 1, small), Error);
}

}  // namespace
}  // namespace plimsoll::kernels::test
