#include "planner/time/flops.h"

#include "models/recompute.h"

namespace plimsoll::planner {

namespace {

void add(const LinearPart& part, std::int64_t count, models::GemmWeights& weights) {
  const double times = static_cast<double>(count);
  (part.train_weight ? weights.trained : weights.frozen) +=
      static_cast<double>(part.in) * static_cast<double>(part.out) * times;
  weights.adapters +=
      static_cast<double>(part.lora_rank) * static_cast<double>(part.in + part.out) * times;
}

// Those that a token visits.
void add(const ExpertsPart& part, std::int64_t count, models::GemmWeights& weights) {
  const double matrix = static_cast<double>(part.hidden) * static_cast<double>(part.ffn) *
                        static_cast<double>(part.active) * static_cast<double>(count);
  (part.train_gate_up ? weights.trained : weights.frozen) += 2 * matrix;
  (part.train_down ? weights.trained : weights.frozen) += matrix;
}

// What a checkpoint by operator keeps is the base's GEMM, not its adapter's.
void add_kept(const LayerPart& layer, std::int64_t count, const models::Recompute& recompute,
              models::GemmsOfToken& gemms) {
  int number = 0;
  for (const models::Node& node : layer.block->nodes) {
    const bool linear = node.kind == models::OpKind::linear;
    const bool kept = models::keeps(recompute, node, linear ? number++ : 0);
    if (node.kind == models::OpKind::attention) gemms.keeps_attention |= kept;
    if (!linear || !kept) continue;
    LinearPart base =
        layer.linears[layer.block->modules[static_cast<std::size_t>(node.module)].place];
    base.lora_rank = 0;
    add(base, count, gemms.kept);
  }
}

}  // namespace

models::GemmsOfToken gemms_of_token(const ModelParts& parts, const models::Recompute& recompute) {
  models::GemmsOfToken gemms;
  for (const LayerRun& run : parts.runs)
    for (const LayerPart& layer : run.pattern) {
      for (const LinearPart& part : layer.linears) add(part, run.repeats(), gemms.layers);
      for (const ExpertsPart& part : layer.experts) add(part, run.repeats(), gemms.layers);
      if (recompute.kind == models::RecomputeKind::ops)
        add_kept(layer, run.repeats(), recompute, gemms);
    }
  add(parts.head, 1, gemms.head);
  return gemms;
}

models::StepFlops step_flops(const ModelParts& parts, const models::Strategy& strategy,
                             const models::Batch& batch) {
  return models::step_flops(gemms_of_token(parts, strategy.recompute), parts.decoder, strategy,
                            batch);
}

}  // namespace plimsoll::planner
