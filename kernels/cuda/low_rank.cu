// What GaLore's bases are made of: the products of a matrix's shorter axis, and the vectors that
// cuSOLVER finds, as a basis.
//
// Thread mapping: gram, 256 threads for each 16 × 16 tile on and above the diagonal, one product
// each; the depth goes through shared memory 16 at a time. basis, a block for each row: its element
// of largest magnitude by a tree, then the row. Numerics: a product of two fp32 numbers is exact in
// fp64, and sums are in the host's order: the host's bits. Once in 200 steps, so not tuned: k² · n
// fp64 additions at some TFLOP/s on a data-centre GPU.
#include "kernels/cuda/eigenvectors.h"
#include "kernels/cuda/operands.h"

namespace plimsoll::kernels::cuda {

namespace {

constexpr int kSide = 16;

struct Products {
  Span x;
  std::int64_t row, depth_step;  // from one row (of the summed axis: place) to the next
  std::int64_t k, depth;
  double* gram;
};

__global__ void __launch_bounds__(kSide* kSide) products(Products p) {
  __shared__ float left[kSide][kSide + 1], right[kSide][kSide + 1];
  const std::int64_t tiles = ceil_divide(p.k, std::int64_t{kSide});
  const std::int64_t row = blockIdx.x / tiles * kSide, column = blockIdx.x % tiles * kSide;
  if (column < row) return;  // the whole block
  // Neighbours in memory are fetched by neighbours.
  const int fast = static_cast<int>(threadIdx.x) % kSide;
  const int slow = static_cast<int>(threadIdx.x) / kSide;
  const bool in_depth = p.depth_step == 1;
  const int fetched_row = in_depth ? slow : fast, fetched_place = in_depth ? fast : slow;
  double sum = 0;
  for (std::int64_t l0 = 0; l0 < p.depth; l0 += kSide) {
    __syncthreads();  // the last tiles are still being read
    const std::int64_t l = l0 + fetched_place;
    const auto fetch = [&](std::int64_t at) {
      return at < p.k && l < p.depth ? device::load_one(p.x, at * p.row + l * p.depth_step) : 0.0f;
    };
    left[fetched_row][fetched_place] = fetch(row + fetched_row);
    right[fetched_row][fetched_place] = fetch(column + fetched_row);
    __syncthreads();
    for (int d = 0; d < kSide; ++d)
      sum += static_cast<double>(left[slow][d]) * static_cast<double>(right[fast][d]);
  }
  const std::int64_t i = row + slow, j = column + fast;
  if (i >= p.k || j >= p.k) return;
  p.gram[i * p.k + j] = sum;
  if (row != column) p.gram[j * p.k + i] = sum;
}

__global__ void __launch_bounds__(kThreads)
    rows_of_basis(const double* vectors, Span basis, std::int64_t rank, std::int64_t k) {
  __shared__ double largest[kThreads];
  __shared__ std::int64_t place[kThreads];
  const std::int64_t row = blockIdx.x;
  const double* v = vectors + (rank - 1 - row) * k;
  const int t = static_cast<int>(threadIdx.x);
  double most = -1;
  std::int64_t at = k;
  for (std::int64_t j = t; j < k; j += kThreads)
    if (fabs(v[j]) > most) {
      most = fabs(v[j]);
      at = j;
    }
  largest[t] = most;
  place[t] = at;
  __syncthreads();
  for (int step = kThreads / 2; step > 0; step /= 2) {
    if (t < step) {
      const double other = largest[t + step];
      if (other > largest[t] || (other == largest[t] && place[t + step] < place[t])) {
        largest[t] = other;
        place[t] = place[t + step];
      }
    }
    __syncthreads();
  }
  const double sign = v[place[0]] < 0 ? -1 : 1;
  for (std::int64_t j = t; j < k; j += kThreads)
    device::store_one(basis, row * k + j, static_cast<float>(sign * v[j]));
}

void gram(ConstTensorView x, TensorView to) {
  host::expect_gram(x, to);
  const std::int64_t m = x.shape[0], n = x.shape[1], k = to.shape[0];
  const bool columns = m >= n;
  const std::int64_t tiles = ceil_divide(k, std::int64_t{kSide});
  start("gram", products, block_each(checked_multiply(tiles, tiles), kSide * kSide),
        Products{span_of(x), columns ? 1 : n, columns ? n : 1, k, columns ? m : n, fp64_of(to)});
}

void basis(ConstTensorView vectors, TensorView to) {
  host::expect_basis(vectors, to);
  start("basis", rows_of_basis, block_each(to.shape[0], kThreads),
        static_cast<const double*>(vectors.data), span_of(to), to.shape[0], to.shape[1]);
}

}  // namespace

void add_low_rank(KernelTable& table) {
  table.gram = gram;
  table.eigenvectors = eigenvectors();
  table.basis = basis;
}

}  // namespace plimsoll::kernels::cuda
