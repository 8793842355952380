#include "models/step_flops.h"

#include <algorithm>

#include "models/decisions/mesh.h"
#include "models/lora.h"
#include "models/prompt_adapters.h"
#include "models/trainable.h"

namespace plimsoll::models {

namespace {

// Of a token: vectors multiply no matrix, and those of stacked experts are folded into the weight.
double low_rank_elements(const LoraModule& module) {
  const bool none = module.a.name.empty() || !module.stacked.empty();
  return none ? 0 : (module.a.elements() + module.b.elements()).real();
}

double all_steps(const GemmWeights& w) {
  return 6 * w.trained + 4 * w.frozen + 6 * w.adapters;
}

// BERT's pooler and its classifier read one token of each sequence.
bool reads_one_token(const ModelSpec& model, const ParameterRow& row) {
  return model.decoder && model.decoder->pooled && row.ranges.empty();
}

// Of the rows that read every token, or of those that read one of a sequence.
GemmsOfToken gemms_of(const ModelSpec& model, const Strategy& strategy, bool one_token) {
  GemmsOfToken gemms;
  for (const TrainableRow& entry : trainable_rows(model, strategy)) {
    const ParameterRow& row = entry.row;
    if (reads_one_token(model, row) != one_token) continue;
    const bool head = row.module == ModuleKind::head, expert = !row.stacked.empty();
    const bool matrices = row.fused_experts && row.shape.rank == 3;  // [experts, in, out]
    const bool linear = row.module == ModuleKind::linear || row.module == ModuleKind::router;
    if (!matrices && ((!head && !expert && !linear) || row.shape.rank != 2)) continue;
    GemmWeights& weights = head ? gemms.head : gemms.layers;
    const std::int64_t visited =
        expert ? row.instances() / row.ranges.back().count * row.active : row.instances();
    const double share = matrices ? Count(row.active).real() / Count(row.shape.axes[0]).real() : 1;
    (entry.trainable ? weights.trained : weights.frozen) +=
        row.shape.elements().real() * static_cast<double>(visited) * share;
  }
  if (strategy.lora)
    for (const LoraModule& module : lora_modules(model, *strategy.lora))
      if (reads_one_token(model, model.parameters[module.base]) == one_token)
        gemms.layers.adapters += low_rank_elements(module);
  return gemms;
}

}  // namespace

GemmsOfToken gemms_of_token(const ModelSpec& model, const Strategy& strategy) {
  return gemms_of(model, strategy, false);
}

StepFlops step_flops(const ModelSpec& model, const Strategy& strategy, const Batch& batch) {
  const Decoder& decoder = *model.decoder;
  const GemmsOfToken gemms = gemms_of_token(model, strategy),
                     once = gemms_of(model, strategy, true);
  const std::int64_t full = decoder.window > 0 ? decoder.full_layers : decoder.layers;
  // In one row of samples a token sees its own, as if all were as long as the mean.
  const std::int64_t length = strategy.rows == Rows::flattened
                                  ? std::max<std::int64_t>(1, batch.tokens() / batch.samples())
                                  : batch.seq_len + virtual_tokens(strategy);
  // A prefix is seen whole by each token, of a causal sequence the half.
  const std::int64_t prefix = checked_multiply(2, prefix_tokens(strategy));
  // Keys that a token sees, of all layers.
  const double seen = static_cast<double>(full) * static_cast<double>(length + prefix) +
                      static_cast<double>(decoder.layers - full) *
                          static_cast<double>(std::min(length + prefix, decoder.window));
  // One third of the attention term: its forward.
  const double attention = static_cast<double>(decoder.q_width()) * 2 * seen;
  const std::int64_t read =
      batch.tokens() + checked_multiply(batch.micro_batch, virtual_tokens(strategy));
  const double batches = static_cast<double>(batch.grad_accum) *
                         static_cast<double>(decisions::mesh_of(strategy).data().ranks);
  const double tokens = static_cast<double>(read) * batches;
  StepFlops flops;
  flops.model = (all_steps(gemms.layers) + all_steps(gemms.head) + 3 * attention) * tokens;
  flops.model += (all_steps(once.layers) + all_steps(once.head)) *
                 static_cast<double>(batch.micro_batch) * batches;
  flops.attention = 3 * attention * tokens;
  return flops;
}

}  // namespace plimsoll::models
