// The canonical sum of ranks: the host's bits, whichever rank's buffer the sum goes to.
#include "kernels/cuda/rank_sum.h"
#include "runtime/comm/tree_sum.h"
#include "tests/kernels/twins/twins.h"

namespace plimsoll::kernels::test {

namespace {

// Adds the first `ranks` operands into all of them, or only into the last.
void sum(const KernelTable& kernels, const Views& views, bool into_all) {
  std::vector<const void*> from;
  std::vector<void*> to;
  for (const TensorView& view : views) {
    from.push_back(view.data);
    if (into_all) to.push_back(view.data);
  }
  if (!into_all) to.push_back(views.back().data);
  const auto add = &kernels == &host_kernels() ? runtime::comm::tree_sum : cuda::rank_sum;
  add(from, to, views[0].dtype, views[0].elements());
}

// Of such different sizes that each order of additions has other bits.
Tensor values(std::int64_t n, DType dtype, std::uint64_t rank) {
  Tensor tensor = drawn({n}, dtype, rank + 1);
  for (std::int64_t i = 0; i < n; ++i)
    tensor.set(i, tensor.at(i) * (1 + 0x1p-7 * static_cast<double>(i % 97)) *
                      (rank % 3 == 0   ? 1.0
                       : rank % 3 == 1 ? 0x1p-6
                                       : 37.0));
  return tensor;
}

void check_sum(std::size_t ranks, DType dtype, std::int64_t n, bool into_all) {
  CAPTURE(ranks);
  CAPTURE(n);
  CAPTURE(name_of(dtype));
  std::vector<Tensor> operands;
  for (std::size_t r = 0; r < ranks; ++r) operands.push_back(values(n, dtype, r));
  const Twins t = twins(operands, [&](const KernelTable& kernels, const Views& views) {
    sum(kernels, views, into_all);
  });
  for (std::size_t r = 0; r < ranks; ++r) CHECK(t.cuda[r] == t.host[r]);
}

}  // namespace

TEST_CASE("a sum of ranks has the host's bits, for any number of ranks and any storage type") {
  for (const DType dtype : kStorage)
    for (std::size_t ranks = 1; ranks <= 9; ++ranks) check_sum(ranks, dtype, 41, ranks % 2 == 0);
  for (const std::int64_t n : kCounts) check_sum(4, DType::bf16, n, true);
  check_sum(64, DType::fp32, 9, false);
}

TEST_CASE("ranks are added in a balanced tree") {
  // (1 + 0) + (2^-24 + 2^-24) = 1 + 2^-23; one after another, 1 + 2^-24 rounds to even, 1, twice.
  const std::vector<Tensor> operands = {Tensor({1}, DType::fp32, 1), Tensor({1}, DType::fp32, 0),
                                        Tensor({1}, DType::fp32, 0x1p-24),
                                        Tensor({1}, DType::fp32, 0x1p-24)};
  const Twins t = twins(
      operands, [](const KernelTable& kernels, const Views& views) { sum(kernels, views, true); });
  for (const Tensor& tensor : t.cuda) CHECK(tensor.at(0) == 1 + 0x1p-23);
}

TEST_CASE("a sum of fp64 has the host's bits") {
  for (const std::size_t ranks : {2u, 3u, 7u}) check_sum(ranks, DType::fp64, 259, true);
}

TEST_CASE("a GPU adds no more ranks than its kernel has places for") {
  std::vector<const void*> from(65);
  CHECK_THROWS_AS(cuda::rank_sum(from, {}, DType::fp32, 1), Error);
}

}  // namespace plimsoll::kernels::test
