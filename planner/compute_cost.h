// Seconds that one GPU needs for the parts of a training step: each product, attention and row-wise
// pass by its roofline (FLOPs against rate, bytes against bandwidth), and the launches of kernels.
#pragma once

#include <array>
#include <cstdint>

#include "models/cluster_spec.h"
#include "models/run_spec.h"
#include "planner/model_parts.h"

namespace plimsoll::planner {

// What a GPU sustains, of its peaks.
struct GpuRates {
  std::array<double, 3> products{};  // FLOP/s of large products in fp32, bf16, fp16; 0: no units
  double attention_forward = 0, attention_backward = 0;  // of the peak, long sequences
  double memory = 0;  // bytes/s of streaming kernels
  double multiprocessors = 1;
  double rate(DType dtype) const;
};
GpuRates gpu_rates(const models::Gpu& gpu);

// Where the time of some work goes. The GPU is busy for products + memory; the host needs
// `launches` to issue it, beside the GPU.
struct Cost {
  double products = 0, memory = 0, launches = 0;
  double busy() const { return products + memory; }
  double seconds() const { return busy() > launches ? busy() : launches; }
  Cost& operator+=(const Cost& other);
};
Cost operator*(double times, const Cost& cost);

// Who computes, as far as time depends on it. Widths are bytes of one element.
struct Execution {
  DType compute = DType::bf16;  // of products
  double residual = 2;  // the stream between layers
  double weight = 2;  // as modules see them
  bool autocast = false;  // operands of products are cast each time
  bool fused = false;  // row-wise operations in one kernel each
  bool flash = true;
  double seq_len = 0, tokens = 0;  // of one micro-batch
};
Execution execution_of(const models::Strategy& strategy, const models::Batch& batch);

// One layer, prepared.
struct LayerCost {
  struct Product {
    double in = 0, out = 0, rank = 0;
    bool train_weight = true, cast_input = true;
  };
  std::array<Product, 7> products{};
  std::size_t count = 0;
  std::int64_t copies = 0;
  double hidden = 0, q_width = 0, kv_width = 0, ffn = 0, window = 0;
  bool swiglu = true, rope = true, rms_norm = true, qk_norm = false;
  bool input_grad = true, trains = true;
  double parameters = 0, trainable = 0;  // elements
  double tensors = 0;  // trained ones
};
LayerCost layer_cost(const LayerRun& run, const models::Decoder& decoder);

// Embedding, final norm, head and loss.
struct EndsCost {
  LayerCost::Product head;
  double hidden = 0, vocab = 0;
  double embedding = 0, embedding_trainable = 0;  // elements
  double tail = 0, tail_trainable = 0;
  double tensors = 0;
};
EndsCost ends_cost(const ModelParts& parts);

struct LayerWork {
  Cost forward, backward, attention;  // attention: what selective recomputation repeats
};
LayerWork layer_work(const GpuRates& gpu, const LayerCost& layer, const Execution& execution);

struct EndsWork {
  Cost embedding, head, embedding_backward, head_backward;
};
EndsWork ends_work(const GpuRates& gpu, const EndsCost& ends, const Execution& execution);

// The optimizer's step over `elements` trained parameters of this rank in `tensors` tensors.
Cost optimizer_cost(const GpuRates& gpu, const models::Strategy& strategy, double elements,
                    double tensors);

}  // namespace plimsoll::planner
