// Cross entropy over rows of logits, which become their gradient in place.
//
// Thread mapping: a block for each row, of 512 threads up to kTwoRows columns and 1024 beyond; a
// thread takes every 512th (1024th) group of eight. Of 16-bit rows the loads of several groups are
// under way at once.
// Memory: a row is read once for its log-sum-exp (streaming maximum and sum); where its gradient is
// wanted it is read again and written once. The second time it comes from the L2 cache, where all
// rows under way fit: two to a multiprocessor (of 50 257 logits in 16 bits 27 MB on 132 of them),
// of wider rows one (34 MB of 128k), for then one row's waits are the other's work.
// Numerics: fp32; the sum of a row is a tree over the threads, within a few ulp of the host's;
// exponentials are exp2f of a product with log2 e, which is wrong by some 2^-24 of the exponent.
// The loss is summed in fp64 in the host's order, and has its bits. A target outside of the row
// is noted (kernels/cuda/launch.h) and its row ignored.
#include <numbers>

#include "kernels/cuda/elementwise.h"
#include "kernels/cuda/operands.h"
#include "kernels/device/elementwise.cuh"
#include "kernels/device/fault.cuh"
#include "kernels/device/reduce.cuh"
#include "kernels/device/soft_cap.cuh"

namespace plimsoll::kernels::cuda {

namespace {

using device::kVector;
using device::MaxSum;

constexpr int kFewThreads = 512, kManyThreads = 1024;
constexpr std::int64_t kTwoRows = 1 << 16;  // so wide at most that two rows share a multiprocessor

__device__ __forceinline__ float exponential(float x) {
  return exp2f(x * std::numbers::log2e_v<float>);
}

struct Rows {
  const std::int32_t* targets;
  std::int32_t ignore_index;
  Span logits;
  std::int64_t first, stride, width;  // a row begins at first + row · stride
  float factor, cap;
  bool vectors;
  std::int32_t* faults;
  __device__ std::int64_t at(std::int64_t row) const { return first + row * stride; }
};

// What a kernel's code depends on: a branch for each element would keep their exponentials from
// being under way at once. kHalves: 16 bits, each group of eight aligned.
template <int threads, bool halves, bool capped>
struct Kind {
  static constexpr int kThreads = threads;  // of a row
  static constexpr bool kHalves = halves, kCapped = capped;
};

// Walks the thread's groups of a row: visit(first column, count, logits).
template <class K, class Visit>
__device__ __forceinline__ void in_row(const Rows& r, std::int64_t row, Visit visit) {
  const std::int64_t step = std::int64_t{blockDim.x} * kVector, begin = r.at(row);
  std::int64_t c = std::int64_t{threadIdx.x} * kVector;
  const auto capped = [&](std::int64_t first, int some, float(&v)[kVector]) {
    if constexpr (K::kCapped)
      for (int e = 0; e < kVector; ++e) v[e] = device::soft_capped(v[e], r.cap);
    visit(first, some, v);
  };
  if constexpr (K::kHalves) {
    constexpr int kAtOnce = 4;
    for (; c + (kAtOnce - 1) * step + kVector <= r.width; c += kAtOnce * step) {
      uint4 raw[kAtOnce];
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i)
        raw[i] = device::fetch_halves(r.logits, begin + c + i * step);
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        float v[kVector];
        device::widen_halves(r.logits, raw[i], v);
        capped(c + i * step, kVector, v);
      }
    }
  }
  for (; c < r.width; c += step) {
    const int some = r.width - c < kVector ? static_cast<int>(r.width - c) : kVector;
    float v[kVector];
    device::load_some(r.logits, begin + c, some, r.vectors, v);
    capped(c, some, v);
  }
}

// Whether the row counts.
__device__ bool counts(const Rows& r, std::int32_t target) {
  if (target == r.ignore_index) return false;
  if (target >= 0 && target < r.width) return true;
  if (threadIdx.x == 0) device::note_fault(r.faults, Fault::target, target);
  return false;
}

template <class K>
__device__ float logsumexp_of(const Rows& r, std::int64_t row, float* shared) {
  MaxSum mine;
  in_row<K>(r, row, [&](std::int64_t, int some, const float(&v)[kVector]) {
    float most = mine.most;
    for (int e = 0; e < kVector; ++e)
      if (e < some && most < v[e]) most = v[e];
    if (most > mine.most) {
      mine.sum *= exponential(mine.most - most);
      mine.most = most;
    }
    if (most == device::kMinusInfinity) return;
    for (int e = 0; e < kVector; ++e)
      if (e < some) mine.sum += exponential(v[e] - mine.most);
  });
  const MaxSum all = device::row_max_sum(mine, shared);
  return all.most + logf(all.sum);
}

template <class K>
__device__ void become_gradient(const Rows& r, std::int64_t row, std::int32_t target,
                                float logsumexp) {
  in_row<K>(r, row, [&](std::int64_t c, int some, float(&v)[kVector]) {
    // Of the target among the eight, where it is there. Rows have less than 2^31 columns.
    const int place = target - static_cast<int>(c);
    for (int e = 0; e < kVector; ++e) {
      float slope = r.factor;
      if constexpr (K::kCapped) slope = device::soft_cap_slope(v[e], r.cap) * r.factor;
      v[e] = (exponential(v[e] - logsumexp) - (e == place ? 1.0f : 0.0f)) * slope;
    }
    device::store_some(r.logits, r.at(row) + c, some, r.vectors, v);
  });
}
__device__ void become_zero(const Rows& r, std::int64_t row) {
  for (std::int64_t c = std::int64_t{threadIdx.x} * kVector; c < r.width;
       c += std::int64_t{blockDim.x} * kVector) {
    const float zeros[kVector] = {};
    device::store_some(r.logits, r.at(row) + c,
                       r.width - c < kVector ? static_cast<int>(r.width - c) : kVector, r.vectors,
                       zeros);
  }
}

template <class K>
__global__ void __launch_bounds__(K::kThreads, kManyThreads / K::kThreads)
    loss_of_rows(Rows r, bool gradient, float* losses, float* logsumexp) {
  float* const shared = device::dynamic_shared<float>();
  const std::int64_t row = blockIdx.x;
  const std::int32_t target = r.targets[row];
  const bool counted = counts(r, target);
  // Before the barriers of the sum, behind which others overwrite it.
  float of_target =
      counted && threadIdx.x == 0 ? device::load_one(r.logits, r.at(row) + target) : 0;
  if constexpr (K::kCapped) of_target = device::soft_capped(of_target, r.cap);
  const float sum = counted || logsumexp ? logsumexp_of<K>(r, row, shared) : 0;
  if (threadIdx.x == 0) {
    if (logsumexp) logsumexp[row] = sum;
    losses[row] = counted ? sum - of_target : 0;
  }
  if (!gradient) return;
  if (counted)
    become_gradient<K>(r, row, target, sum);
  else
    become_zero(r, row);
}

template <class K>
__global__ void __launch_bounds__(K::kThreads, kManyThreads / K::kThreads)
    gradient_of_rows(Rows r, const float* logsumexp) {
  const std::int64_t row = blockIdx.x;
  const std::int32_t target = r.targets[row];
  if (counts(r, target))
    become_gradient<K>(r, row, target, logsumexp[row]);
  else
    become_zero(r, row);
}

__global__ void __launch_bounds__(kLossSums)
    ordered_sum(const float* losses, std::int64_t n, double factor, double* sum) {
  __shared__ double shared[kLossSums];
  double mine = 0;
#pragma unroll 8
  for (std::int64_t at = threadIdx.x; at < n; at += kLossSums)
    mine += static_cast<double>(losses[at]);
  shared[threadIdx.x] = mine;
  __syncthreads();
  if (threadIdx.x != 0) return;
  double all = 0;
  for (int i = 0; i < kLossSums; ++i) all += shared[i];
  *sum += factor * all;
}

// start(Kind) of these rows.
template <class Start>
void with_kind(const Rows& r, Start start) {
  const auto of_threads = [&](auto threads) {
    const auto of_halves = [&](auto halves) {
      if (r.cap > 0)
        start(Kind<threads(), halves(), true>{});
      else
        start(Kind<threads(), halves(), false>{});
    };
    if (r.vectors && r.logits.storage != device::Storage::fp32)
      of_halves(std::true_type{});
    else
      of_halves(std::false_type{});
  };
  if (r.width <= kTwoRows)
    of_threads(std::integral_constant<int, kFewThreads>{});
  else
    of_threads(std::integral_constant<int, kManyThreads>{});
}

Rows rows_of(const ConstTensorView& targets, std::int32_t ignore_index, float factor, float cap,
             const Columns& logits) {
  const TensorView& faults = current_launch().faults;
  return {.targets = int32_of(targets),
          .ignore_index = ignore_index,
          .logits = span_of(logits.tensor),
          .first = logits.first,
          .stride = logits.stride(),
          .width = logits.width,
          .factor = factor,
          .cap = cap,
          .vectors = aligned_columns(logits),
          .faults = faults ? int32_of(faults) : nullptr};
}

void cross_entropy(ConstTensorView targets, std::int32_t ignore_index, bool gradient, float factor,
                   float cap, Columns logits, TensorView losses, TensorView logsumexp) {
  const std::int64_t rows = targets.elements();
  expect(logits.rows() == rows && losses.elements() == rows &&
             (!logsumexp || logsumexp.elements() == rows),
         "cross_entropy", "logits, targets, losses have the same rows");
  const Rows r = rows_of(targets, ignore_index, factor, cap, logits);
  with_kind(r, [&](auto kind) {
    start("cross_entropy", loss_of_rows<decltype(kind)>,
          block_each(rows, kind.kThreads, device::kMostWarps * sizeof(float)), r, gradient,
          fp32_of(losses), logsumexp ? fp32_of(logsumexp) : nullptr);
  });
}

void cross_entropy_backward(ConstTensorView targets, std::int32_t ignore_index, float factor,
                            float cap, ConstTensorView logsumexp, Columns logits) {
  const std::int64_t rows = targets.elements();
  expect(logits.rows() == rows && logsumexp.elements() == rows, "cross_entropy_backward",
         "logits, targets, logsumexp have the same rows");
  const Rows r = rows_of(targets, ignore_index, factor, cap, logits);
  with_kind(r, [&](auto kind) {
    start("cross_entropy_backward", gradient_of_rows<decltype(kind)>,
          block_each(rows, kind.kThreads), r, fp32_of(logsumexp));
  });
}

struct Nothing {};
struct SoftCap {
  using State = Nothing;
  float cap;
  __device__ void operator()(State&, std::int64_t, const float* in, float* out) const {
    out[0] = device::soft_capped(in[0], cap);
  }
};

void soft_cap(float cap, TensorView x) {
  start_elementwise("soft_cap", SoftCap{cap}, x.elements(), {x}, {x});
}

void loss_sum(ConstTensorView losses, double factor, TensorView sum) {
  start("loss_sum", ordered_sum, block_each(1, kLossSums), fp32_of(losses), losses.elements(),
        factor, fp64_of(sum));
}

}  // namespace

void add_loss(KernelTable& table) {
  table.cross_entropy = cross_entropy;
  table.cross_entropy_backward = cross_entropy_backward;
  table.soft_cap = soft_cap;
  table.loss_sum = loss_sum;
}

}  // namespace plimsoll::kernels::cuda
