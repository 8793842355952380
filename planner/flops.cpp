#include "planner/flops.h"

#include <algorithm>

namespace plimsoll::planner {

using models::RecomputeKind;

namespace {

struct LinearFlops {
  double model = 0, forward = 0;  // per token
  void add(const LinearPart& part) {
    const double weights = static_cast<double>(part.in) * static_cast<double>(part.out);
    const double adapter =
        static_cast<double>(part.lora_rank) * static_cast<double>(part.in + part.out);
    model += (part.train_weight ? 6 : 4) * weights + 6 * adapter;
    forward += 2 * (weights + adapter);
  }
};

LinearFlops layer_flops(const LayerPart& layer) {
  LinearFlops flops;
  for (const LinearPart* part :
       {&layer.q, &layer.k, &layer.v, &layer.o, &layer.gate, &layer.up, &layer.down})
    flops.add(*part);
  return flops;
}

}  // namespace

StepFlops step_flops(const ModelParts& parts, const models::Strategy& strategy,
                     const models::Batch& batch) {
  const models::Decoder& d = parts.decoder;
  LinearFlops layers, head;
  for (const LayerRun& run : parts.runs) {
    const LinearFlops one = layer_flops(run.layer);
    layers.model += one.model * static_cast<double>(run.count);
    layers.forward += one.forward * static_cast<double>(run.count);
  }
  head.add(parts.head);
  const std::int64_t seen = d.window > 0 ? std::min(batch.seq_len, d.window) : batch.seq_len;
  // One third of the attention term: its forward.
  const double attention = static_cast<double>(d.layers) * static_cast<double>(d.q_width()) * 2 *
                           static_cast<double>(seen);
  const double tokens = static_cast<double>(batch.tokens()) *
                        static_cast<double>(batch.grad_accum) * static_cast<double>(strategy.gpus);
  StepFlops flops;
  flops.model = (layers.model + head.model + 3 * attention) * tokens;
  flops.attention = 3 * attention * tokens;
  double again = 0;
  if (strategy.recompute.kind == RecomputeKind::selective)
    again = attention;
  else if (strategy.recompute.kind != RecomputeKind::none)
    again = layers.forward + attention;
  flops.hardware = flops.model + again * tokens;
  return flops;
}

}  // namespace plimsoll::planner
