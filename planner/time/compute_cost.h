// Seconds that one GPU needs for the parts of a training step: each product, attention and row-wise
// pass by its roofline (FLOPs against rate, bytes against bandwidth), and the launches of kernels.
#pragma once

#include <cstdint>
#include <vector>

#include "models/run_spec.h"
#include "planner/model_parts.h"
#include "planner/time/gpu_rates.h"

namespace plimsoll::planner {

// Where the time of some work goes. The GPU is busy for products + memory; the host needs
// `launches` to issue it, beside the GPU.
struct Cost {
  double products = 0, memory = 0, launches = 0;
  double busy() const { return products + memory; }
  double seconds() const { return busy() > launches ? busy() : launches; }
  Cost& operator+=(const Cost& other) {
    products += other.products;
    memory += other.memory;
    launches += other.launches;
    return *this;
  }
};
inline Cost operator*(double times, const Cost& cost) {
  return {times * cost.products, times * cost.memory, times * cost.launches};
}

// Who computes, as far as time depends on it. Widths are bytes of one element.
struct Execution {
  DType compute = DType::bf16;  // of products
  double low = 2;  // width of `compute`
  double residual = 2;  // width of the stream between layers
  double stored = 4;  // width of a parameter as the optimizer steps it
  double gathered = 2;  // width in which parameters travel
  double reduced = 2;  // width in which gradients travel
  bool autocast = false;  // operands of products are in another dtype
  bool casts = false;  // by a kernel of their own each time
  bool promotes = false;  // autocast, whatever the parameters are in, runs some operations in fp32
  bool fused = false;  // one kernel for a row-wise operation, where eager has one for each step
  bool own = false;  // the kernels of stack plimsoll
  bool compiled = false;
  models::Loss loss = models::Loss::full;
  models::Attention attention = models::Attention::flash;
  DType adapter = DType::bf16;  // of LoRA's products
  bool adapters_cast = false;  // their operands are cast to fp32 and back
  double adapter_dropout = 0;
  double launch = 0;  // seconds of the host for one kernel
  double seq_len = 0, tokens = 0;  // of one micro-batch
  bool operator==(const Execution&) const = default;
};
// The host's time to issue one kernel, seconds.
Share launch_seconds(const models::Strategy& strategy);

Execution execution_of(const models::Strategy& strategy, const models::Batch& batch);

// A product with a weight, prepared.
struct ProductShape {
  double in = 0, out = 0, rank = 0;
  bool train_weight = true;
  bool cast_input = true;  // what it reads is in the residual's dtype
};

struct ProductWork {
  Cost forward, backward;
};
ProductWork linear_work(const GpuRates& gpu, const Execution& execution, const ProductShape& shape,
                        bool input_grad);

// One layer, prepared.
struct LayerCost {
  std::vector<ProductShape> products;
  std::size_t last = 0;  // the layer's last product
  double copies = 0;
  double hidden = 0, q_width = 0, kv_width = 0, heads = 0, ffn = 0, window = 0;
  bool bidirectional = false;
  bool swiglu = true, rope = true, rms_norm = true, qk_norm = false, python_gelu = false;
  double rotated = 1;  // share of each head that `rope` turns
  bool input_grad = true, trains = true;
  double parameters = 0, trainable = 0;  // elements
  double tensors = 0;  // trained ones
};
// Of one layer of the run's pattern, which stands for `run.repeats()` of them.
LayerCost layer_cost(const LayerRun& run, const LayerPart& layer, const models::Decoder& decoder);

// Embedding, final norm, head and loss.
struct EndsCost {
  ProductShape head;
  double hidden = 0, vocab = 0;
  bool tied = false;
  double embedding = 0, embedding_trainable = 0;  // elements
  double tail = 0, tail_trainable = 0;
  double tensors = 0;
};
EndsCost ends_cost(const ModelParts& parts);

struct LayerWork {
  Cost forward, backward;
  Cost attention;  // what selective recomputation repeats
  Cost again;  // what full recomputation repeats: all but the last product
};
LayerWork layer_work(const GpuRates& gpu, const LayerCost& layer, const Execution& execution);

struct EndsWork {
  Cost forward, backward;
};
EndsWork ends_work(const GpuRates& gpu, const EndsCost& ends, const Execution& execution);

// The optimizer's step over `elements` trained parameters of this rank in `tensors` tensors.
Cost optimizer_cost(const GpuRates& gpu, const models::Strategy& strategy,
                    const Execution& execution, double elements, double tensors);

}  // namespace plimsoll::planner
