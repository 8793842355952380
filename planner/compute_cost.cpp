#include "planner/compute_cost.h"

#include <algorithm>

namespace plimsoll::planner {

using models::OptimizerImpl;
using models::Precision;
using models::Stack;

Cost& Cost::operator+=(const Cost& other) {
  products += other.products;
  memory += other.memory;
  launches += other.launches;
  return *this;
}

Cost operator*(double times, const Cost& cost) {
  return {times * cost.products, times * cost.memory, times * cost.launches};
}

double GpuRates::rate(DType dtype) const {
  return products[dtype == DType::fp32 ? 0 : dtype == DType::bf16 ? 1 : 2];
}

namespace {

// The host's time to issue one operation of eager PyTorch, and of a captured or native runtime.
constexpr double kEagerLaunch = 6e-6, kNativeLaunch = 3e-6;

// A product of cuBLAS covers its output in tiles, the largest of 128 x 256 elements (NVIDIA,
// "Matrix Multiplication Background User's Guide", tile and wave quantization).
constexpr double kTile = 128.0 * 256.0;

Cost product(const GpuRates& gpu, const Execution& e, double m, double n, double k) {
  const double width = e.compute == DType::fp32 ? 4 : 2;
  // On average the last wave of tiles is half full.
  const double waves = m * n / kTile / gpu.multiprocessors;
  const double compute = 2 * m * n * k / gpu.rate(e.compute) * (waves + 0.5) / waves;
  const double memory = width * (m * k + k * n + m * n) / gpu.memory;
  return compute >= memory ? Cost{compute, 0, 0} : Cost{0, memory, 0};
}

struct ProductWork {
  Cost forward, backward;
};

// y = x W, dx = dy W', dW = x' dy; adapters beside it.
ProductWork linear(const GpuRates& gpu, const Execution& e, const LayerCost::Product& p,
                   bool input_grad) {
  const double t = e.tokens;
  ProductWork work;
  work.forward += product(gpu, e, t, p.out, p.in);
  if (input_grad) work.backward += product(gpu, e, t, p.in, p.out);
  if (p.train_weight) work.backward += product(gpu, e, p.in, p.out, t);
  if (p.rank > 0) {
    work.forward += product(gpu, e, t, p.rank, p.in);
    work.forward += product(gpu, e, t, p.out, p.rank);
    work.backward += 2 * product(gpu, e, t, p.rank, p.out);
    work.backward += 2 * product(gpu, e, t, p.in, p.rank);
  }
  if (e.autocast) {  // x is read in the residual's dtype and written in the product's; W too
    const double cast = (p.cast_input ? t * p.in * (e.residual + 2) : 0) + p.in * p.out * 6;
    work.forward.memory += cast / gpu.memory;
    work.backward.memory += (p.train_weight ? cast : 0) / gpu.memory;
  }
  return work;
}

// Fused attention reads q, k, v once and computes both products in one kernel.
ProductWork attention(const GpuRates& gpu, const LayerCost& layer, const Execution& e) {
  const double seen = layer.window > 0 ? std::min(e.seq_len, layer.window) : e.seq_len;
  const double flops = 2 * e.tokens * layer.q_width * seen;  // the causal half
  ProductWork work;
  if (e.flash) {
    // Blocks of 128 rows: the diagonal ones are computed whole.
    const double filled = seen / (seen + 128);
    work.forward.products = flops / (gpu.rate(e.compute) * gpu.attention_forward * filled);
    work.backward.products = 2.5 * flops / (gpu.rate(e.compute) * gpu.attention_backward * filled);
    return work;
  }
  // Both halves of the score matrix, written and read by scale, mask, softmax and dropout.
  const double heads = layer.q_width / 128;
  const double scores = e.tokens * e.seq_len * heads;
  work.forward.products = 2 * flops / gpu.rate(e.compute);
  work.backward.products = 4 * flops / gpu.rate(e.compute);
  work.forward.memory = 20 * scores / gpu.memory;
  work.backward.memory = 28 * scores / gpu.memory;
  return work;
}

// Bytes that row-wise operations of a layer move for a token, forward.
double row_bytes(const LayerCost& layer, const Execution& e) {
  const double r = e.residual, c = e.compute == DType::fp32 ? 4 : 2;
  const double to_fp32 = r < 4 ? 2 * (r + 4) : 0;
  // LlamaRMSNorm: pow, mean, two products in fp32; LayerNorm is one kernel.
  const double norm = e.fused || !layer.rms_norm ? 2 * r : to_fp32 + 20 + 2 * r;
  const double rope = layer.rope ? (e.fused ? 2 : 10) * c * (layer.q_width + layer.kv_width) : 0;
  const double gate = layer.swiglu ? (e.fused ? 3 : 5) * c * layer.ffn : 2 * c * layer.ffn;
  return (2 * norm + 2 * (2 * r + c)) * layer.hidden + rope + gate +
         (layer.qk_norm ? norm * (layer.q_width + layer.kv_width) : 0);
}

}  // namespace

GpuRates gpu_rates(const models::Gpu& gpu) {
  GpuRates rates;
  const double fraction = gpu.family == "ampere" ? 0.82 : gpu.family == "hopper" ? 0.66 : 0.7;
  rates.products = {fraction * gpu.fp32_flops.value_or(0), fraction * gpu.bf16_flops.value_or(0),
                    fraction * gpu.fp16_flops.value_or(0)};
  rates.attention_forward = 0.75;
  rates.attention_backward = 0.65;
  rates.memory = 0.85 * gpu.memory_bandwidth;
  rates.multiprocessors = gpu.multiprocessors.value_or(100);
  return rates;
}

Execution execution_of(const models::Strategy& s, const models::Batch& batch) {
  Execution e;
  const bool mixed = s.precision == Precision::bf16_mixed || s.precision == Precision::fp16_mixed;
  const bool fp16 = s.precision == Precision::fp16_mixed || s.precision == Precision::fp16;
  e.compute = s.precision == Precision::fp32 ? DType::fp32 : fp16 ? DType::fp16 : DType::bf16;
  const double low = e.compute == DType::fp32 ? 4 : 2;
  e.autocast = mixed && s.stack == Stack::pytorch && s.data.zero < 2;
  e.residual = e.weight =
      e.autocast && s.param_dtype.value_or(DType::fp32) == DType::fp32 ? 4 : low;
  e.autocast = e.autocast && e.residual > low;
  e.fused = s.stack == Stack::plimsoll || s.compile || s.kernels != models::Kernels::eager;
  e.flash = s.attention == models::Attention::flash;
  e.seq_len = static_cast<double>(batch.seq_len);
  e.tokens = static_cast<double>(batch.tokens());
  return e;
}

LayerCost layer_cost(const LayerRun& run, const models::Decoder& d) {
  LayerCost cost;
  const LayerPart& layer = run.layer;
  for (const LinearPart* part :
       {&layer.q, &layer.k, &layer.v, &layer.o, &layer.gate, &layer.up, &layer.down}) {
    if (part->in == 0) continue;
    // What o and down read comes out of a product's dtype already.
    const bool cast = part != &layer.o && part != &layer.down;
    cost.products[cost.count++] = {static_cast<double>(part->in), static_cast<double>(part->out),
                                   static_cast<double>(part->lora_rank), part->train_weight, cast};
  }
  cost.copies = run.count;
  cost.hidden = static_cast<double>(d.hidden);
  cost.q_width = static_cast<double>(d.q_width());
  cost.kv_width = static_cast<double>(d.kv_width());
  cost.ffn = static_cast<double>(d.ffn);
  cost.window = static_cast<double>(d.window);
  cost.swiglu = d.mlp == models::MlpKind::swiglu;
  cost.rope = d.position == models::PositionKind::rope;
  cost.rms_norm = d.norm == models::NormKind::rms_norm;
  cost.qk_norm = d.qk_norm;
  cost.input_grad = run.input_grad;
  cost.trains = layer.trains();
  for (const Parameter& p : layer.parameters) {
    cost.parameters += static_cast<double>(p.elements);
    if (!p.trainable) continue;
    cost.trainable += static_cast<double>(p.elements);
    cost.tensors += 1;
  }
  return cost;
}

EndsCost ends_cost(const ModelParts& parts) {
  EndsCost ends;
  ends.head = {static_cast<double>(parts.head.in), static_cast<double>(parts.head.out),
               static_cast<double>(parts.head.lora_rank), parts.head.train_weight, true};
  ends.hidden = static_cast<double>(parts.decoder.hidden);
  ends.vocab = static_cast<double>(parts.decoder.vocab);
  const auto add = [&](const std::vector<Parameter>& from, double& all, double& trained) {
    for (const Parameter& p : from) {
      all += static_cast<double>(p.elements);
      if (!p.trainable) continue;
      trained += static_cast<double>(p.elements);
      ends.tensors += 1;
    }
  };
  add(parts.embedding, ends.embedding, ends.embedding_trainable);
  add(parts.tail, ends.tail, ends.tail_trainable);
  return ends;
}

LayerWork layer_work(const GpuRates& gpu, const LayerCost& layer, const Execution& e) {
  LayerWork work;
  const bool backward = layer.input_grad || layer.trains;
  for (std::size_t i = 0; i < layer.count; ++i) {
    const ProductWork one = linear(gpu, e, layer.products[i], layer.input_grad);
    work.forward += one.forward;
    work.backward += one.backward;
  }
  const ProductWork scores = attention(gpu, layer, e);
  work.attention = scores.forward;
  work.forward += scores.forward;
  if (backward) work.backward += scores.backward;
  const double rows = row_bytes(layer, e) * e.tokens / gpu.memory;
  work.forward.memory += rows;
  if (backward) work.backward.memory += 2 * rows;
  const double launch = e.fused ? kNativeLaunch : kEagerLaunch;
  const double kernels = e.fused ? 16 : layer.rms_norm ? 45 : 25;
  work.forward.launches = kernels * launch;
  if (backward) work.backward.launches = 2 * kernels * launch;
  return work;
}

EndsWork ends_work(const GpuRates& gpu, const EndsCost& ends, const Execution& e) {
  EndsWork work;
  const double width = e.compute == DType::fp32 ? 4 : 2;
  work.embedding.memory = 2 * e.residual * e.tokens * ends.hidden / gpu.memory;
  if (ends.embedding_trainable > 0) work.embedding_backward = 2 * work.embedding;
  const ProductWork head = linear(gpu, e, ends.head, true);
  // The loss in fp32: logits converted, log-softmax, its gradient, converted back.
  const double logits = e.tokens * ends.vocab / gpu.memory;
  work.head = head.forward;
  work.head.memory += logits * (e.fused ? 2 * width : (width + 4) + 8);
  work.head_backward = head.backward;
  work.head_backward.memory += logits * (e.fused ? 2 * width : 12 + (width + 4));
  return work;
}

Cost optimizer_cost(const GpuRates& gpu, const models::Strategy& s, double elements,
                    double tensors) {
  const bool fused = s.stack != Stack::pytorch || s.optimizer_impl == OptimizerImpl::fused;
  // Bytes for an fp32 element. Fused: reads p, g, m, v, writes p, m, v. Else torch/optim/adam.py,
  // one pass each: p *= (8), lerp m (12), v *= (8), addcmul v (12), sqrt (8), / (8), + (8),
  // addcdiv (16).
  double bytes = 20;  // momentum: reads p, g, m, writes p, m
  if (s.optimizer == models::Optimizer::sgd) bytes = 12;
  if (s.optimizer == models::Optimizer::adamw) bytes = fused ? 28 : 80;
  const bool mixed = s.precision == Precision::bf16_mixed || s.precision == Precision::fp16_mixed ||
                     s.precision == Precision::fp32;
  if (!mixed) bytes /= 2;
  Cost cost;
  cost.memory = elements * bytes / gpu.memory;
  const double passes = fused ? 1 : 8;
  cost.launches = s.optimizer_impl == OptimizerImpl::for_loop ? passes * tensors * kEagerLaunch
                                                              : passes * 10 * kEagerLaunch;
  return cost;
}

}  // namespace plimsoll::planner
