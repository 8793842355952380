// Which experts a token visits, and the rows that this gives each expert.
//
// Thread mapping: a warp for each token, then a block for each expert, of which a thread takes a
// stretch of the pairs. Memory: logits are read k + 1 times, out of the cache, and the chosen
// experts twice by each expert's block. Numerics: fp32; a softmax's sum is a tree over the warp, or
// over the chosen in their order.
#include "kernels/cuda/pairs.h"
#include "kernels/device/elementwise.cuh"
#include "kernels/device/reduce.cuh"

namespace plimsoll::kernels::cuda {

namespace {

using device::kWarp;

struct Best {
  float logit;
  std::int32_t expert;  // -1: none
};
struct Better {
  __device__ __forceinline__ Best operator()(const Best& a, const Best& b) const {
    if (a.expert < 0) return b;
    if (b.expert < 0 || a.logit > b.logit) return a;
    return b.logit > a.logit || b.expert < a.expert ? b : a;
  }
};

__device__ __forceinline__ Best best_of_warp(Best best) {
  for (int step = kWarp / 2; step > 0; step /= 2) {
    const Best other{__shfl_xor_sync(device::kAllLanes, best.logit, step),
                     __shfl_xor_sync(device::kAllLanes, best.expert, step)};
    best = Better{}(best, other);
  }
  return best;
}

__device__ __forceinline__ float warp_sum(float value) {
  for (int step = kWarp / 2; step > 0; step /= 2)
    value += __shfl_xor_sync(device::kAllLanes, value, step);
  return value;
}
__device__ __forceinline__ float warp_most(float value) {
  for (int step = kWarp / 2; step > 0; step /= 2)
    value = device::Larger{}(value, __shfl_xor_sync(device::kAllLanes, value, step));
  return value;
}

struct Softmax {
  float most, sum;
  __device__ __forceinline__ float of(float logit) const { return expf(logit - most) / sum; }
};

// Of all of a token's logits.
__device__ Softmax softmax_of(const Span& logits, std::int64_t first, std::int64_t experts) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  float most = device::kMinusInfinity, sum = 0;
  for (std::int64_t e = lane; e < experts; e += kWarp)
    most = device::Larger{}(most, device::load_one(logits, first + e));
  most = warp_most(most);
  for (std::int64_t e = lane; e < experts; e += kWarp)
    sum += expf(device::load_one(logits, first + e) - most);
  return {most, warp_sum(sum)};
}

constexpr int kTokensOfBlock = kThreads / kWarp;
__device__ __forceinline__ std::int64_t token_of_warp() {
  return std::int64_t{blockIdx.x} * kTokensOfBlock + threadIdx.x / kWarp;
}

__global__ void __launch_bounds__(kThreads)
    choose(Span logits, bool normalizes, Pairs r, float* scores) {
  const std::int64_t token = token_of_warp();
  if (token >= r.tokens) return;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const std::int64_t first = token * r.experts, pair = token * r.active;
  Best last{0, -1}, largest{0, -1};
  float sum = 0;
  for (std::int64_t j = 0; j < r.active; ++j) {
    Best best{0, -1};
    for (std::int64_t e = lane; e < r.experts; e += kWarp) {
      const float logit = device::load_one(logits, first + e);
      const bool left =
          j == 0 ? logit == logit : logit < last.logit || (logit == last.logit && e > last.expert);
      if (left && (best.expert < 0 || logit > best.logit))
        best = {logit, static_cast<std::int32_t>(e)};
    }
    best = best_of_warp(best);
    if (best.expert < 0)  // all that is left is NaN
      best = {device::load_one(logits, first + r.experts - 1),
              static_cast<std::int32_t>(r.experts - 1)};
    last = best;
    if (j == 0) largest = best;
    sum += expf(best.logit - largest.logit);
    if (lane == 0) {
      r.chosen[pair + j] = best.expert;
      scores[pair + j] = best.logit;
    }
  }
  const Softmax s = normalizes ? Softmax{largest.logit, sum} : softmax_of(logits, first, r.experts);
  if (lane == 0)
    for (std::int64_t j = 0; j < r.active; ++j) scores[pair + j] = s.of(scores[pair + j]);
}

// A thread's stretch of the pairs.
struct Stretch {
  std::int64_t begin, end;
  __device__ explicit Stretch(std::int64_t rows) {
    const std::int64_t each = ceil_divide(rows, std::int64_t{kThreads});
    begin = each * threadIdx.x < rows ? each * threadIdx.x : rows;
    end = begin + each < rows ? begin + each : rows;
  }
};

__device__ std::int32_t count_of(const Pairs& r, const Stretch& mine, std::int32_t expert) {
  std::int32_t count = 0;
  for (std::int64_t p = mine.begin; p < mine.end; ++p) count += r.chosen[p] == expert ? 1 : 0;
  return count;
}

// offsets[e + 1]: how many rows expert e has.
__global__ void __launch_bounds__(kThreads) count_rows(Pairs r) {
  __shared__ std::int32_t counts[kThreads];
  const auto expert = static_cast<std::int32_t>(blockIdx.x);
  counts[threadIdx.x] = count_of(r, Stretch(r.rows), expert);
  __syncthreads();
  if (threadIdx.x != 0) return;
  std::int32_t all = 0;
  for (int i = 0; i < kThreads; ++i) all += counts[i];
  r.offsets[expert + 1] = all;
}

__global__ void __launch_bounds__(kThreads) add_counts(Pairs r) {
  if (device::grid_thread() != 0) return;
  std::int32_t all = 0;
  r.offsets[0] = 0;
  for (std::int64_t e = 0; e < r.experts; ++e) r.offsets[e + 1] = all += r.offsets[e + 1];
}

__global__ void __launch_bounds__(kThreads) place_rows(Pairs r) {
  __shared__ std::int32_t counts[kThreads];
  const auto expert = static_cast<std::int32_t>(blockIdx.x);
  const Stretch mine(r.rows);
  counts[threadIdx.x] = count_of(r, mine, expert);
  __syncthreads();
  std::int32_t row = r.offsets[expert];
  for (int i = 0; i < static_cast<int>(threadIdx.x); ++i) row += counts[i];
  for (std::int64_t p = mine.begin; p < mine.end; ++p) {
    if (r.chosen[p] != expert) continue;
    r.pairs[row] = static_cast<std::int32_t>(p);
    r.places[p] = row++;
  }
}

void route(ConstTensorView logits, bool normalizes, const Routes& routes, TensorView scores) {
  constexpr const char* op = "route";
  const Pairs r = pairs_of(routes, op);
  expect(logits.elements() == r.tokens * r.experts && scores.elements() == r.rows &&
             r.active <= r.experts,
         op, "logits are [T, E], scores [T, k] with k <= E");
  start(op, choose, block_each(ceil_divide(r.tokens, std::int64_t{kTokensOfBlock}), kThreads),
        span_of(logits), normalizes, r, fp32_of(scores));
  start(op, count_rows, block_each(r.experts, kThreads), r);
  start(op, add_counts, block_each(1, kThreads), r);
  start(op, place_rows, block_each(r.experts, kThreads), r);
}

__global__ void __launch_bounds__(kThreads)
    route_gradient(Span logits, bool normalizes, Pairs r, const float* scores,
                   const float* d_scores, Span d_logits) {
  const std::int64_t token = token_of_warp();
  if (token >= r.tokens) return;
  const std::int64_t first = token * r.experts, pair = token * r.active;
  float mean = 0;
  for (std::int64_t j = 0; j < r.active; ++j) mean += scores[pair + j] * d_scores[pair + j];
  Softmax s{0, 1};
  if (!normalizes) s = softmax_of(logits, first, r.experts);
  for (std::int64_t e = threadIdx.x % kWarp; e < r.experts; e += kWarp) {
    float d = normalizes ? 0 : -s.of(device::load_one(logits, first + e)) * mean;
    for (std::int64_t j = 0; j < r.active; ++j)
      if (r.chosen[pair + j] == e)
        d += scores[pair + j] * (normalizes ? d_scores[pair + j] - mean : d_scores[pair + j]);
    device::store_one(d_logits, first + e, d);
  }
}

void route_backward(ConstTensorView logits, bool normalizes, const Routes& routes,
                    ConstTensorView scores, ConstTensorView d_scores, TensorView d_logits) {
  constexpr const char* op = "route_backward";
  const Pairs r = pairs_of(routes, op);
  expect(d_logits.elements() == r.tokens * r.experts && scores.elements() == r.rows &&
             d_scores.elements() == r.rows &&
             (normalizes || logits.elements() == d_logits.elements()),
         op, "logits are [T, E], scores [T, k]");
  start(op, route_gradient,
        block_each(ceil_divide(r.tokens, std::int64_t{kTokensOfBlock}), kThreads), span_of(logits),
        normalizes, r, fp32_of(scores), fp32_of(d_scores), span_of(d_logits));
}

}  // namespace

void add_routing(KernelTable& table) {
  table.route = route;
  table.route_backward = route_backward;
}

}  // namespace plimsoll::kernels::cuda
