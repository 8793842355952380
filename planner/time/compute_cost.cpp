#include "planner/time/compute_cost.h"

#include <algorithm>

#include "models/optimizers.h"
#include "planner/stacks/stack_info.h"
#include "planner/time/row_traffic.h"

namespace plimsoll::planner {

using models::OptimizerImpl;
using models::Precision;

namespace {

double width(DType dtype) {
  return static_cast<double>(bits(dtype)) / 8;
}

// A product covers its output in tiles, the largest of 256 x 128 elements, a wave of them at a time
// (NVIDIA, "Matrix Multiplication Background User's Guide", sections 3.2 and 3.3). The smaller ones
// for thin outputs end at 16 elements, an instruction's side. Without tensor cores: 128 x 128
// (cuBLAS's sgemm_128x128).
constexpr double kTileLong = 256, kTileShort = 128, kTileLeast = 16;

// Attention's causal tiles are computed whole along the diagonal: 128 rows and columns of them
// (FlashAttention-2, arXiv 2307.08691, section 3.3).
constexpr double kAttentionTile = 128;

Cost product(const GpuRates& gpu, DType dtype, double m, double n, double k) {
  const double rate = gpu.products[rate_index(dtype)];
  const double longest = dtype == DType::fp32 ? kTileShort : kTileLong;
  const double tile = std::clamp(std::max(m, n), kTileLeast, longest) *
                      std::clamp(std::min(m, n), kTileLeast, kTileShort);
  // The last wave is on average half full.
  const double compute = 2 * (m * n + tile * gpu.multiprocessors / 2) * k / rate;
  const double memory = width(dtype) * (m * k + k * n + m * n) / gpu.memory;
  return compute >= memory ? Cost{compute, 0, 0} : Cost{0, memory, 0};
}

}  // namespace

// y = x W, dx = dy W', dW = x' dy; adapters beside it.
ProductWork linear_work(const GpuRates& gpu, const Execution& e, const ProductShape& p,
                        bool input_grad) {
  const double t = e.tokens;
  ProductWork work;
  work.forward += product(gpu, e.compute, t, p.out, p.in);
  if (input_grad) work.backward += product(gpu, e.compute, t, p.in, p.out);
  if (p.train_weight) work.backward += product(gpu, e.compute, p.in, p.out, t);
  if (p.rank > 0) {
    work.forward += product(gpu, e.adapter, t, p.rank, p.in);
    work.forward += product(gpu, e.adapter, t, p.out, p.rank);
    work.backward += product(gpu, e.adapter, t, p.rank, p.out);
    work.backward += product(gpu, e.adapter, p.rank, p.out, t);
    work.backward += product(gpu, e.adapter, t, p.in, p.rank);
    work.backward += product(gpu, e.adapter, p.in, p.rank, t);
    const RowTraffic rows = adapter_traffic(p, e);
    work.forward.memory += rows.forward * t / gpu.memory;
    work.backward.memory += rows.backward * t / gpu.memory;
  }
  if (e.casts) {  // operands are read in the stream's dtype and written in the product's
    const double input = p.cast_input ? t * p.in * (e.residual + e.low) : 0;
    const double weight = p.in * p.out * (e.residual + e.low);
    work.forward.memory += (input + weight) / gpu.memory;
    work.backward.memory += (input + (p.train_weight ? weight : 0)) / gpu.memory;
  }
  return work;
}

namespace {

ProductWork attention(const GpuRates& gpu, const LayerCost& layer, const Execution& e) {
  const double seen = layer.window > 0 ? std::min(e.seq_len, layer.window) : e.seq_len;
  const std::size_t i = rate_index(e.compute);
  ProductWork work;
  if (is_flash(e.attention)) {
    const AttentionRates& rates = e.attention == models::Attention::flash ? gpu.flash : gpu.flash_1;
    // Two products of the causal half; backward has five (FlashAttention-2, algorithm 2).
    const double keys = layer.bidirectional ? 2 * seen : seen + kAttentionTile;
    const double flops = 2 * e.tokens * layer.q_width * keys;
    work.forward.products = flops / rates.forward[i];
    work.backward.products = 2.5 * flops / rates.backward[i];
    return work;
  }
  // The whole matrix of scores. transformers, eager_attention_forward: written 2, scaled 4, masked
  // 4, softmax in fp32 6, to the dtype 6, read 2 bytes: 12 passes, backward 18; under autocast
  // two casts more. Where one kernel does what lies between the products: 4, and 7.
  const double flops = 4 * e.tokens * layer.q_width * e.seq_len;
  const double scores = e.tokens * e.seq_len * layer.heads;
  work.forward.products = flops / gpu.products[i];
  work.backward.products = 2 * flops / gpu.products[i];
  work.forward.memory = (e.fused ? 4 : e.casts ? 16 : 12) * e.low * scores / gpu.memory;
  work.backward.memory = (e.fused ? 7 : e.casts ? 20 : 18) * e.low * scores / gpu.memory;
  return work;
}

}  // namespace

Share launch_seconds(const models::Strategy& s) {
  if (stack_info(s.stack).own_kernels || s.compile)
    return {3e-6, "assumed", "a launch from C++ or compiled code; the host's speed decides"};
  return {6e-6, "assumed", "eager PyTorch's Python and dispatcher; the host's speed decides"};
}

Execution execution_of(const models::Strategy& s, const models::Batch& batch) {
  Execution e;
  const StackInfo& stack = stack_info(s.stack);
  const bool torch = stack.mixed_is_autocast, fsdp = torch && s.data.zero >= 2;
  const bool fp16 = s.precision == Precision::fp16_mixed || s.precision == Precision::fp16;
  e.compute = s.precision == Precision::fp32 ? DType::fp32 : fp16 ? DType::fp16 : DType::bf16;
  e.low = width(e.compute);
  // Under autocast (DDP) modules hold --param-dtype; FSDP's policy and the other stacks cast all.
  const double own = is_mixed(s.precision) ? width(s.param_dtype.value_or(DType::fp32)) : e.low;
  e.residual = torch && !fsdp ? own : e.low;
  e.autocast = e.residual > e.low;
  e.gathered = torch && !fsdp ? own : e.low;
  e.stored = is_mixed(s.precision) ? (torch && !fsdp ? own : 4) : e.low;
  e.reduced = e.gathered;
  if (s.grad_dtype) e.reduced = width(*s.grad_dtype);
  if (s.data.reduce_dtype) e.reduced = width(*s.data.reduce_dtype);
  e.fused = stack.own_kernels || s.compile || s.kernels != models::Kernels::eager;
  e.loss = s.loss;
  e.own = stack.own_kernels;
  e.compiled = s.compile;
  e.casts = e.autocast && !s.compile;
  e.promotes = torch && !fsdp && is_mixed(s.precision) && !s.compile;
  e.attention = s.attention;
  // PEFT casts to the adapters' dtype; autocast, where it is on, then computes in the low one.
  // FSDP's policy leaves no fp32 adapters.
  e.adapters_cast =
      s.lora && torch && !(fsdp && is_mixed(s.precision)) && width(s.lora->dtype) > e.low;
  e.adapter = e.adapters_cast && !is_mixed(s.precision) ? DType::fp32 : e.compute;
  e.adapter_dropout = s.lora ? s.lora->dropout : 0;
  e.launch = launch_seconds(s).value;
  e.seq_len = static_cast<double>(batch.seq_len);
  e.tokens = static_cast<double>(batch.tokens());
  return e;
}

namespace {

// Whether autocast casts what the product reads. What comes out of another product in its dtype,
// through attention or elementwise ops, needs none, but for a GELU that autocast promotes.
bool reads_wide(const models::Block& block, const models::Module& module) {
  using models::OpKind;
  const auto by = [&](const models::Node& node) {
    return node.module >= 0 && &block.modules[static_cast<std::size_t>(node.module)] == &module;
  };
  const models::ValueId in = std::ranges::find_if(block.nodes, by)->in[0];
  for (const models::Node& node : block.nodes)
    for (const models::ValueId out : node.out)
      if (out == in)
        return node.kind == OpKind::norm || node.kind == OpKind::add ||
               node.activation == models::Activation::gelu_python;
  return true;
}

}  // namespace

LayerCost layer_cost(const LayerRun& run, const LayerPart& layer, const models::Decoder& d) {
  LayerCost cost;
  for (const models::Module& module : layer.block->modules) {
    if (models::is_norm(module.kind)) continue;
    const LinearPart& part = layer.linears[module.place];
    cost.last = cost.products.size();
    cost.products.push_back({static_cast<double>(part.in), static_cast<double>(part.out),
                             static_cast<double>(part.lora_rank), part.train_weight,
                             reads_wide(*layer.block, module)});
  }
  cost.copies = static_cast<double>(run.repeats());
  cost.hidden = static_cast<double>(d.hidden);
  cost.q_width = static_cast<double>(d.q_width());
  cost.kv_width = static_cast<double>(d.kv_width());
  cost.heads = static_cast<double>(d.heads);
  cost.ffn = static_cast<double>(d.ffn);
  const bool slides = std::ranges::any_of(layer.block->nodes, &models::Node::sliding);
  cost.window = slides ? static_cast<double>(d.window) : 0;
  cost.bidirectional = d.bidirectional;
  cost.swiglu = d.mlp == models::MlpKind::swiglu;
  cost.rope = d.position == models::PositionKind::rope;
  cost.rotated = static_cast<double>(d.rotated()) / static_cast<double>(d.head_dim);
  cost.rms_norm = is_rms(d.norm);
  cost.qk_norm = d.qk_norm;
  cost.python_gelu = d.python_gelu;
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

LayerWork layer_work(const GpuRates& gpu, const LayerCost& layer, const Execution& e) {
  LayerWork work;
  const bool backward = layer.input_grad || layer.trains;
  Cost last;
  for (std::size_t i = 0; i < layer.products.size(); ++i) {
    const ProductWork one = linear_work(gpu, e, layer.products[i], layer.input_grad);
    work.forward += one.forward;
    if (backward) work.backward += one.backward;
    if (i == layer.last) last = one.forward;
  }
  const ProductWork scores = attention(gpu, layer, e);
  work.attention = scores.forward;
  work.forward += scores.forward;
  const RowTraffic rows = layer_traffic(layer, e);
  const double kernels = layer_kernels(layer, e);
  work.forward += {0, rows.forward * e.tokens / gpu.memory, kernels * e.launch};
  work.again = work.forward;
  work.again.products -= last.products;
  work.again.memory -= last.memory;
  if (!backward) return work;
  work.backward += scores.backward;
  work.backward += {0, rows.backward * e.tokens / gpu.memory, 2 * kernels * e.launch};
  return work;
}

// Bytes for one element, every value of the width it is stored in. Stacks with fp32 masters beside
// 16-bit weights read the gradient and write the weight in 16 bits.
Cost optimizer_cost(const GpuRates& gpu, const models::Strategy& s, const Execution& e,
                    double elements, double tensors) {
  const StackInfo& stack = stack_info(s.stack);
  const bool fused = !stack.foreach_by_default || s.optimizer_impl == OptimizerImpl::fused;
  const models::OptimizerRule& rule = models::rule_of(s.optimizer);
  const models::StepTraffic& traffic = fused ? rule.fused : rule.unfused;
  double bytes = traffic.values * e.stored;
  if (!stack.mixed_is_autocast && e.stored > e.low) bytes += e.low + e.reduced - e.stored;
  // Lists of tensors go to multi-tensor kernels of up to 320 at a time (ForeachUtils, chunk
  // metadata), a loop launches each tensor's own.
  const bool loop = s.optimizer_impl == OptimizerImpl::for_loop;
  const double launches = traffic.passes * (loop ? tensors : tensors / 320 + 1);
  return {0, elements * bytes / gpu.memory, launches * e.launch};
}

}  // namespace plimsoll::planner
