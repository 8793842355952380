#include "runtime/comm/tree_sum.h"

#include <algorithm>
#include <array>
#include <type_traits>

#include "kernels/number.h"

namespace plimsoll::runtime::comm {

namespace {

using kernels::widened;

constexpr std::int64_t kBlock = 512;  // elements; the partial sums of a block stay in the cache
constexpr std::size_t kDepth = 16;  // 2^15 ranks

// Partial sums in a stack of complete subtrees, the largest first, like the bits of a counter.
template <class Sum, class Read, class Write>
void sum_block(std::size_t ranks, std::int64_t count, Read read, Write write) {
  std::array<std::array<Sum, kBlock>, kDepth> partial;
  std::size_t depth = 0;
  const auto merge = [&] {
    --depth;
    Sum* left = partial[depth - 1].data();
    const Sum* right = partial[depth].data();
    for (std::int64_t i = 0; i < count; ++i) left[i] += right[i];
  };
  for (std::size_t r = 0; r < ranks; ++r) {
    check(depth < kDepth, ErrorKind::internal, "a sum has less than 2^15 ranks");
    read(r, partial[depth++].data());
    for (std::size_t n = r + 1; n % 2 == 0; n /= 2) merge();
  }
  while (depth > 1) merge();
  write(partial[0].data());
}

double widened(double x) {
  return x;
}
template <class T, class Sum>
T narrowed(Sum sum) {
  if constexpr (std::is_same_v<T, Sum>)
    return sum;
  else
    return kernels::narrowed<T>(sum);
}

template <class T, class Sum>
void sum_all(std::span<const void* const> ranks, std::span<void* const> to, std::int64_t count) {
  for (std::int64_t first = 0; first < count; first += kBlock) {
    const std::int64_t n = std::min(kBlock, count - first);
    sum_block<Sum>(
        ranks.size(), n,
        [&](std::size_t rank, Sum* out) {
          const T* x = static_cast<const T*>(ranks[rank]) + first;
          for (std::int64_t i = 0; i < n; ++i) out[i] = widened(x[i]);
        },
        [&](const Sum* sum) {
          for (void* buffer : to) {
            T* y = static_cast<T*>(buffer) + first;
            for (std::int64_t i = 0; i < n; ++i) y[i] = narrowed<T>(sum[i]);
          }
        });
  }
}

}  // namespace

void tree_sum(std::span<const void* const> ranks, std::span<void* const> to, DType dtype,
              std::int64_t count) {
  using kernels::Bf16;
  using kernels::Fp16;
  if (count == 0) return;
  switch (dtype) {
    case DType::fp64:
      return sum_all<double, double>(ranks, to, count);
    case DType::fp32:
      return sum_all<float, float>(ranks, to, count);
    case DType::bf16:
      return sum_all<Bf16, float>(ranks, to, count);
    case DType::fp16:
      return sum_all<Fp16, float>(ranks, to, count);
    default:
      fail(ErrorKind::internal, "ranks do not add " + std::string(name_of(dtype)));
  }
}

}  // namespace plimsoll::runtime::comm
