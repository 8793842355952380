// AdamW, SGD and Lion, with an fp32 master or with stochastic rounding.
//
// Thread mapping: a thread takes eight consecutive elements, then those a grid further on; so a
// warp has a block of moments in 8 bits, whose maps stand in shared memory.
// Memory: weight (or master), moments and gradient are read once, weight, master and moments
// written once: 28 bytes an element for AdamW with a master and 16-bit weight and gradient, 16.06
// where the moments have 8 bits, 14 bytes with everything in 16 bits. Numerics: fp32,
// multiplications and additions rounded one by one (compiled without contraction), IEEE division
// and square root, the host's words of Philox: the host's bits.
#include <algorithm>

#include "kernels/cuda/elementwise.h"

namespace plimsoll::kernels::cuda {

namespace {

using device::kVector;
using device::kWarp;
using device::Storage;

struct States {
  Span weight, master, first, second, gradient;  // null: none
  const float* factor;
  const std::int32_t* overflow;
  std::int64_t elements;
  std::uint64_t first_element;
  RandomKey key;
  bool draws, vectors;
};

struct AdamStep {
  float beta1, beta2, rest1, rest2, rate, root, eps, decay;
  __device__ void operator()(float& w, float& m, float& v, float g) const {
    m = beta1 * m + rest1 * g;
    v = beta2 * v + rest2 * g * g;
    w = w * decay - rate * m / (sqrtf(v) / root + eps);
  }
};
struct SgdStep {
  float rate, momentum, decay;
  bool moment;
  __device__ void operator()(float& w, float& m, float&, float g) const {
    g += decay * w;
    m = momentum * m + g;
    w -= rate * (moment ? m : g);
  }
};

struct LionStep {
  float beta1, beta2, rest1, rest2, rate, decay;
  __device__ void operator()(float& w, float& m, float&, float g) const {
    const float c = beta1 * m + rest1 * g;
    w = w * decay - (c > 0 ? rate : c < 0 ? -rate : 0);
    m = beta2 * m + rest2 * g;
  }
};

// A 16-bit value is rounded by word `kWord` of its element's block.
template <int kWord>
__device__ __forceinline__ void store_rounded(const Span& s, std::int64_t i, int n, bool vectors,
                                              const float* v, const Philox* random) {
  if (s.data == nullptr) return;
  if (s.storage == Storage::fp32) return device::store_some(s, i, n, vectors, v);
  // The stochastic result is a number of the type, so that rounding it again changes nothing.
  float rounded[kVector];
#pragma unroll
  for (int e = 0; e < kVector; ++e) {
    const std::uint32_t word = random[e][kWord];
    rounded[e] = s.storage == Storage::bf16
                     ? device::wide(stochastically_narrowed(Bf16{}, v[e], word))
                     : device::wide(stochastically_narrowed(Fp16{}, v[e], word));
  }
  device::store_some(s, i, n, vectors, rounded);
}

struct Loaded {
  float w[kVector], m[kVector], v[kVector], g[kVector];
};

__device__ __forceinline__ void load_states(const States& s, std::int64_t i, int n, Loaded& x) {
  const Span operands[4] = {s.master.data ? s.master : s.weight, s.first, s.second, s.gradient};
  float* const to[4] = {x.w, x.m, x.v, x.g};
  if (s.vectors && n == kVector) {
    device::Raw raw[4] = {};
#pragma unroll
    for (int k = 0; k < 4; ++k)
      if (operands[k].data) raw[k] = device::fetch(operands[k], i);
#pragma unroll
    for (int k = 0; k < 4; ++k) device::widen(operands[k], raw[k], to[k]);
    return;
  }
#pragma unroll
  for (int k = 0; k < 4; ++k)
    device::load_some(operands[k], i, operands[k].data ? n : 0, false, to[k]);
}

__device__ __forceinline__ void draw(const States& s, std::int64_t i, Philox* random) {
  if (!s.draws) return;
#pragma unroll
  for (int e = 0; e < kVector; ++e)
    random[e] = random_block(s.key, s.first_element + static_cast<std::uint64_t>(i + e));
}

__device__ __forceinline__ void store_weight(const States& s, std::int64_t i, int n,
                                             const Loaded& x, const Philox* random) {
  if (s.master.data) {
    device::store_some(s.master, i, n, s.vectors, x.w);
    device::store_some(s.weight, i, n, s.vectors, x.w);
  } else {
    store_rounded<0>(s.weight, i, n, s.vectors, x.w, random);
  }
}

// Moments in 8 bits.
struct Codes {
  std::uint8_t* codes;  // null: there is no such moment
  float* scales;
};
struct Coded {
  Codes first, second;
  float first_map[256], second_map[256];  // kernels/dynamic_map.h
};
struct Tables {
  float value[256], middle[256];
};

__device__ __forceinline__ void load_codes(const Codes& c, const Tables& map, std::int64_t i, int n,
                                           bool vectors, float* to) {
  std::uint32_t words[2] = {};
  if (n > 0 && c.codes != nullptr) {
    if (vectors && n == kVector) {
      const auto all = *reinterpret_cast<const std::uint64_t*>(c.codes + i);
      words[0] = static_cast<std::uint32_t>(all);
      words[1] = static_cast<std::uint32_t>(all >> 32);
    } else {
#pragma unroll
      for (int e = 0; e < kVector; ++e)
        if (e < n) words[e / 4] |= static_cast<std::uint32_t>(c.codes[i + e]) << (e % 4 * 8);
    }
  }
  const float scale = n > 0 && c.codes != nullptr ? c.scales[i / kStateBlock] : 0.0f;
#pragma unroll
  for (int e = 0; e < kVector; ++e) to[e] = map.value[words[e / 4] >> (e % 4 * 8) & 0xffu] * scale;
}

// All lanes of a warp, which have a block together.
__device__ __forceinline__ void store_codes(const Codes& c, const Tables& map, std::int64_t i,
                                            int n, bool vectors, const float* v) {
  if (c.codes == nullptr) return;
  float most = 0;
#pragma unroll
  for (int e = 0; e < kVector; ++e)
    if (e < n && most < fabsf(v[e])) most = fabsf(v[e]);
  for (int step = kWarp / 2; step > 0; step /= 2) {
    const float other = __shfl_xor_sync(device::kAllLanes, most, step);
    most = most < other ? other : most;
  }
  if (threadIdx.x % kWarp == 0) c.scales[i / kStateBlock] = most;
  const float inverse = inverse_scale(most);
  std::uint32_t words[2] = {};
#pragma unroll
  for (int e = 0; e < kVector; ++e)
    words[e / 4] |= static_cast<std::uint32_t>(nearest_code(map.middle, v[e], inverse))
                    << (e % 4 * 8);
  if (vectors && n == kVector) {
    *reinterpret_cast<std::uint64_t*>(c.codes + i) = words[0] | static_cast<std::uint64_t>(words[1])
                                                                    << 32;
  } else {
#pragma unroll
    for (int e = 0; e < kVector; ++e)
      if (e < n) c.codes[i + e] = static_cast<std::uint8_t>(words[e / 4] >> (e % 4 * 8));
  }
}

__device__ __forceinline__ void load_map(const float (&from)[256], Tables& to) {
  for (int i = static_cast<int>(threadIdx.x); i < 256; i += static_cast<int>(blockDim.x)) {
    to.value[i] = from[i];
    to.middle[i] = i < 255 ? (from[i] + from[i + 1]) / 2 : 0.0f;
  }
}

template <class Step>
__device__ void update_some(const States& s, const Step& step, std::int64_t i, int n,
                            float factor) {
  Loaded x;
  load_states(s, i, n, x);
#pragma unroll
  for (int e = 0; e < kVector; ++e) step(x.w[e], x.m[e], x.v[e], x.g[e] * factor);
  Philox random[kVector] = {};
  draw(s, i, random);
  store_weight(s, i, n, x, random);
  store_rounded<1>(s.first, i, n, s.vectors, x.m, random);
  store_rounded<2>(s.second, i, n, s.vectors, x.v, random);
}

template <class Step>
__global__ void __launch_bounds__(kThreads) update(States s, Step step) {
  if (s.overflow && *s.overflow != 0) return;
  const float factor = s.factor ? *s.factor : 1;
  for (std::int64_t i = device::grid_thread() * kVector; i < s.elements;
       i += device::grid_threads() * kVector) {
    const std::int64_t left = s.elements - i;
    update_some(s, step, i, left < kVector ? static_cast<int>(left) : kVector, factor);
  }
}

// A warp takes a block of 256, which share a scale, then those a grid further on.
template <class Step>
__global__ void __launch_bounds__(kThreads) update_coded(States s, Coded c, Step step) {
  static_assert(kStateBlock == kWarp * kVector);
  // Not static: the emulator sees no shared array of a template.
  Tables* const maps = device::dynamic_shared<Tables>();
  Tables &first_map = maps[0], &second_map = maps[1];
  if (s.overflow && *s.overflow != 0) return;
  load_map(c.first_map, first_map);
  load_map(c.second_map, second_map);
  __syncthreads();
  const float factor = s.factor ? *s.factor : 1;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  for (std::int64_t begin = device::grid_thread() / kWarp * kStateBlock; begin < s.elements;
       begin += device::grid_threads() * kVector) {
    const std::int64_t i = begin + lane * kVector, left = s.elements - i;
    const int n = left <= 0 ? 0 : left < kVector ? static_cast<int>(left) : kVector;
    Loaded x;
    load_states(s, i, n, x);
    load_codes(c.first, first_map, i, n, s.vectors, x.m);
    load_codes(c.second, second_map, i, n, s.vectors, x.v);
    __syncwarp();  // the scales are written below
#pragma unroll
    for (int e = 0; e < kVector; ++e) step(x.w[e], x.m[e], x.v[e], x.g[e] * factor);
    Philox random[kVector] = {};
    draw(s, i, random);
    store_weight(s, i, n, x, random);
    store_codes(c.first, first_map, i, n, s.vectors, x.m);
    store_codes(c.second, second_map, i, n, s.vectors, x.v);
  }
}

bool has_16_bits(const ConstTensorView& view) {
  return view && bits(view.dtype) == 16;
}

Codes codes_of(const TensorView& moment, const TensorView& scales) {
  if (!scales) return {};
  return {static_cast<std::uint8_t*>(moment.data), fp32_of(scales)};
}

template <class Step>
void start_update(const char* op, const OptimizerTensors& t, const Step& step) {
  const bool coded = static_cast<bool>(t.first_scales);
  const bool draws = (!t.master && has_16_bits(t.weight)) || has_16_bits(t.first_moment) ||
                     has_16_bits(t.second_moment);
  const States s{
      .weight = span_of(t.weight),
      .master = span_of(t.master),
      .first = coded ? Span{} : span_of(t.first_moment),
      .second = coded ? Span{} : span_of(t.second_moment),
      .gradient = span_of(t.gradient),
      .factor = t.factor ? fp32_of(t.factor) : nullptr,
      .overflow = t.overflow ? int32_of(t.overflow) : nullptr,
      .elements = t.weight.elements(),
      .first_element = t.first_element,
      .key = t.key,
      .draws = draws,
      .vectors = aligned({t.weight, t.master, t.first_moment, t.second_moment, t.gradient})};
  Grid grid = strided_grid(ceil_divide(s.elements, kVector));
  if (!coded) return start(op, update<Step>, grid, s, step);
  Coded c{.first = codes_of(t.first_moment, t.first_scales),
          .second = codes_of(t.second_moment, t.second_scales)};
  std::ranges::copy(kSignedMap.value, c.first_map);
  std::ranges::copy(kUnsignedMap.value, c.second_map);
  grid.shared_bytes = 2 * sizeof(Tables);
  start(op, update_coded<Step>, grid, s, c, step);
}

void adamw(const OptimizerTensors& tensors, const AdamW& o) {
  host::expect_tensors(tensors, "adamw");
  expect(tensors.first_moment && tensors.second_moment && o.step >= 1, "adamw",
         "there are two moments, and steps count from 1");
  const auto correction = [&](float beta) {
    return 1 - std::pow(static_cast<double>(beta), static_cast<double>(o.step));
  };
  start_update("adamw", tensors,
               AdamStep{.beta1 = o.beta1,
                        .beta2 = o.beta2,
                        .rest1 = 1 - o.beta1,
                        .rest2 = 1 - o.beta2,
                        .rate = static_cast<float>(o.learning_rate / correction(o.beta1)),
                        .root = static_cast<float>(std::sqrt(correction(o.beta2))),
                        .eps = o.eps,
                        .decay = 1 - o.learning_rate * o.weight_decay});
}

void sgd(const OptimizerTensors& tensors, const Sgd& o) {
  host::expect_tensors(tensors, "sgd");
  expect(!tensors.second_moment && (o.momentum == 0 || tensors.first_moment), "sgd",
         "momentum has one moment");
  start_update("sgd", tensors,
               SgdStep{o.learning_rate, o.momentum, o.weight_decay,
                       static_cast<bool>(tensors.first_moment)});
}

void lion(const OptimizerTensors& tensors, const Lion& o) {
  host::expect_tensors(tensors, "lion");
  expect(tensors.first_moment && !tensors.second_moment, "lion", "there is one moment");
  start_update("lion", tensors,
               LionStep{.beta1 = o.beta1,
                        .beta2 = o.beta2,
                        .rest1 = 1 - o.beta1,
                        .rest2 = 1 - o.beta2,
                        .rate = o.learning_rate,
                        .decay = 1 - o.learning_rate * o.weight_decay});
}

}  // namespace

void add_optimizers(KernelTable& table) {
  table.adamw = adamw;
  table.sgd = sgd;
  table.lion = lion;
}

}  // namespace plimsoll::kernels::cuda
