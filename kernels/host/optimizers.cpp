#include "kernels/host/blocks.h"

namespace plimsoll::kernels::host {

namespace {

bool has_16_bits(const ConstTensorView& view) {
  return view && bits(view.dtype) == 16;
}

template <class T>
void round_stochastically(const float* from, std::int64_t first, std::int64_t n,
                          const Philox* random, std::size_t word, void* to) {
  T* y = static_cast<T*>(to) + first;
  for (std::int64_t i = 0; i < n; ++i)
    y[i] = stochastically_narrowed(T{}, from[i], random[i][word]);
}
void store(const float* from, std::int64_t first, std::int64_t n, const Philox* random,
           std::size_t word, const TensorView& to) {
  if (to.dtype == DType::bf16)
    round_stochastically<Bf16>(from, first, n, random, word, to.data);
  else if (to.dtype == DType::fp16)
    round_stochastically<Fp16>(from, first, n, random, word, to.data);
  else
    write(from, first, n, to);
}

// n <= kBlock values of a moment from `first` on, a multiple of kStateBlock.
void read_state(const TensorView& state, const TensorView& scales, const DynamicMap& map,
                std::int64_t first, std::int64_t n, float* to) {
  if (!state) return;
  if (!scales) return read(state, first, n, to);
  const auto* codes = static_cast<const std::uint8_t*>(state.data) + first;
  const float* scale = fp32_of(scales) + first / kStateBlock;
  for (std::int64_t i = 0; i < n; ++i) to[i] = map.value[codes[i]] * scale[i / kStateBlock];
}
void store_codes(const float* from, std::int64_t first, std::int64_t n, const DynamicMap& map,
                 const TensorView& state, const TensorView& scales) {
  auto* codes = static_cast<std::uint8_t*>(state.data) + first;
  float* scale = fp32_of(scales) + first / kStateBlock;
  for (std::int64_t begin = 0; begin < n; begin += kStateBlock, ++scale) {
    const std::int64_t end = std::min(n, begin + kStateBlock);
    float most = 0;
    for (std::int64_t i = begin; i < end; ++i)
      if (most < std::fabs(from[i])) most = std::fabs(from[i]);
    *scale = most;
    const float inverse = inverse_scale(most);
    for (std::int64_t i = begin; i < end; ++i)
      codes[i] = nearest_code(map.middle, from[i], inverse);
  }
}
void store_state(const float* from, std::int64_t first, std::int64_t n, const Philox* random,
                 std::size_t word, const DynamicMap& map, const TensorView& state,
                 const TensorView& scales) {
  if (!state) return;
  if (scales)
    store_codes(from, first, n, map, state, scales);
  else
    store(from, first, n, random, word, state);
}
static_assert(kBlock % kStateBlock == 0, "a block of work begins where a block of states does");

void expect_scales(const TensorView& state, const TensorView& scales, bool codes, const char* op) {
  expect(!state || (state.dtype == DType::uint8) == codes, op,
         "all moments are in 8 bits, or none");
  const std::int64_t blocks = codes && state ? ceil_divide(state.elements(), kStateBlock) : 0;
  expect(scales.elements() == blocks && (!scales || scales.dtype == DType::fp32), op,
         "a moment in 8 bits has an fp32 scale for each block");
}

// A block of everything in fp32; step(w, m, v, g) changes the first three.
template <class Step>
void update(const OptimizerTensors& t, Step step) {
  if (t.overflow && *int32_of(t.overflow) != 0) return;
  const float factor = t.factor ? *fp32_of(t.factor) : 1;
  const bool draws = (!t.master && has_16_bits(t.weight)) || has_16_bits(t.first_moment) ||
                     has_16_bits(t.second_moment);
  in_blocks(t.weight.elements(), [&](std::int64_t first, std::int64_t n) {
    float w[kBlock], m[kBlock] = {}, v[kBlock] = {}, g[kBlock];
    read(t.master ? t.master : t.weight, first, n, w);
    read_state(t.first_moment, t.first_scales, kSignedMap, first, n, m);
    read_state(t.second_moment, t.second_scales, kUnsignedMap, first, n, v);
    read(t.gradient, first, n, g);
    for (std::int64_t i = 0; i < n; ++i) step(w[i], m[i], v[i], g[i] * factor);
    Philox random[kBlock];
    if (draws)
      for (std::int64_t i = 0; i < n; ++i)
        random[i] = random_block(t.key, t.first_element + static_cast<std::uint64_t>(first + i));
    if (t.master) {
      write(w, first, n, t.master);
      write(w, first, n, t.weight);
    } else {
      store(w, first, n, random, 0, t.weight);
    }
    store_state(m, first, n, random, 1, kSignedMap, t.first_moment, t.first_scales);
    store_state(v, first, n, random, 2, kUnsignedMap, t.second_moment, t.second_scales);
  });
}

void adamw(const OptimizerTensors& tensors, const AdamW& o) {
  expect_tensors(tensors, "adamw");
  expect(tensors.first_moment && tensors.second_moment && o.step >= 1, "adamw",
         "there are two moments, and steps count from 1");
  const auto correction = [&](float beta) {
    return 1 - std::pow(static_cast<double>(beta), static_cast<double>(o.step));
  };
  const auto rate = static_cast<float>(o.learning_rate / correction(o.beta1));
  const auto root = static_cast<float>(std::sqrt(correction(o.beta2)));
  const float decay = 1 - o.learning_rate * o.weight_decay;
  update(tensors, [&](float& w, float& m, float& v, float g) {
    m = o.beta1 * m + (1 - o.beta1) * g;
    v = o.beta2 * v + (1 - o.beta2) * g * g;
    w = w * decay - rate * m / (std::sqrt(v) / root + o.eps);
  });
}

void sgd(const OptimizerTensors& tensors, const Sgd& o) {
  expect_tensors(tensors, "sgd");
  expect(!tensors.second_moment && (o.momentum == 0 || tensors.first_moment), "sgd",
         "momentum has one moment");
  const bool moment = static_cast<bool>(tensors.first_moment);
  update(tensors, [&](float& w, float& m, float&, float g) {
    g += o.weight_decay * w;
    m = o.momentum * m + g;
    w -= o.learning_rate * (moment ? m : g);
  });
}

void lion(const OptimizerTensors& tensors, const Lion& o) {
  expect_tensors(tensors, "lion");
  expect(tensors.first_moment && !tensors.second_moment, "lion", "there is one moment");
  const float decay = 1 - o.learning_rate * o.weight_decay;
  update(tensors, [&](float& w, float& m, float&, float g) {
    const float c = o.beta1 * m + (1 - o.beta1) * g;
    w = w * decay - (c > 0 ? o.learning_rate : c < 0 ? -o.learning_rate : 0);
    m = o.beta2 * m + (1 - o.beta2) * g;
  });
}

}  // namespace

void expect_tensors(const OptimizerTensors& t, const char* op) {
  const std::int64_t n = t.weight.elements();
  const auto fits = [n](const ConstTensorView& view) { return !view || view.elements() == n; };
  expect(
      t.gradient.elements() == n && fits(t.master) && fits(t.first_moment) && fits(t.second_moment),
      op, "weights, gradients and states are equally many");
  expect(!t.master || t.master.dtype == DType::fp32, op, "masters are fp32");
  const bool codes = t.first_moment && t.first_moment.dtype == DType::uint8;
  expect_scales(t.first_moment, t.first_scales, codes, op);
  expect_scales(t.second_moment, t.second_scales, codes, op);
}

void add_optimizers(KernelTable& table) {
  table.adamw = adamw;
  table.sgd = sgd;
  table.lion = lion;
}

}  // namespace plimsoll::kernels::host
