// The largest need of any op (models/decisions/workspace.h).
#include <algorithm>

#include "planner/stacks/plimsoll/step.h"

namespace plimsoll::planner::plimsoll_stack {

namespace decisions = models::decisions;

namespace {

Bytes fp32(std::int64_t elements) {
  return storage(Count(elements), DType::fp32);
}

SymBytes flash_backward(const models::Decoder& d, Tokens tokens, DType compute,
                        models::Device device) {
  const SymInt queries = checked_multiply(d.heads / d.kv_heads, tokens.length);
  const SymInt values = checked_multiply(queries, d.head_dim);
  const bool narrow = compute != DType::fp32;
  const bool library = narrow && device == models::Device::cuda;
  SymBytes group = storage(queries, DType::fp32);  // row sums
  if (narrow) group += storage(values, DType::fp32);  // dQ
  if (library && d.heads != d.kv_heads) group += 2 * storage(values, compute);  // dK, dV
  const SymInt groups = checked_multiply(tokens.sequences, d.kv_heads);
  const SymInt fit = larger(1, decisions::kAttentionWorkspace.value() / larger(1, group.value()));
  return group * smaller(groups, fit) + (library ? decisions::kAttentionPadding : Bytes(0));
}

// One fp64 for each chunk of each tensor, and one for each tensor.
Bytes norms(std::int64_t chunks, std::int64_t tensors) {
  return storage(Count(checked_add(chunks, tensors)), decisions::kNorms);
}

}  // namespace

SymBytes StepWriter::workspace() {
  if (!workspace_of_any_batch_) workspace_of_any_batch_ = workspace_of_any_batch();
  SymBytes most = *workspace_of_any_batch_;
  for (const std::vector<OwnLayer>& pattern : own_layers_)
    if (strategy_.attention == models::Attention::flash &&
        std::ranges::any_of(pattern, &OwnLayer::attends_backward))
      most = larger(most, flash_backward(d_, tokens_, regime_.compute, strategy_.device));
  if (parts_.train_embedding) most = larger(most, layer_.bytes(4, decisions::kTokenIds));
  return most;
}

Bytes StepWriter::workspace_of_any_batch() const {
  const Bytes gemm = decisions::gemm_workspace(strategy_.device, regime_.compute);
  Bytes most = gemm;
  const auto need = [&](Bytes bytes) { most = std::max(most, bytes); };
  std::int64_t chunks = 0, tensors = 0;
  const auto count = [&](const std::vector<Parameter>& parameters, std::int64_t copies) {
    for (const Parameter& p : parameters) {
      if (!p.trainable) continue;
      chunks = checked_add(
          chunks, checked_multiply(copies, ceil_divide(p.elements, decisions::kNormChunk)));
      tensors += copies;
    }
  };
  const auto norm = [&](const NormPart& part) {
    const std::int64_t columns = part.bias ? 2 : 1;
    if (part.trains()) need(fp32(checked_multiply(decisions::kPartialRows * columns, part.width)));
  };
  const auto linear = [&](const LinearPart& part) {
    if (part.bias && part.train_bias)
      need(fp32(checked_multiply(decisions::kPartialRows, part.out)));
    if (part.lora_rank > 0 && regime_.adapters.weight != regime_.compute)
      need(gemm + storage(Count(checked_multiply(part.lora_rank, std::max(part.in, part.out))),
                          regime_.compute));
  };
  count(parts_.embedding, 1);
  count(parts_.tail, 1);
  norm(parts_.final_norm);
  linear(parts_.head);
  for (const LayerRun& run : parts_.runs) {
    for (const LayerPart& layer : run.pattern) {
      count(layer.parameters, run.repeats());
      for (const decisions::LowRank& m :
           projected(layer.parameters, decisions::projected_rank(strategy_)))
        need(decisions::low_rank_workspace(m, regime_.base.gradient, gemm, strategy_.device));
      for (const NormPart& part : layer.norms) norm(part);
      for (const LinearPart& part : layer.linears) linear(part);
    }
  }
  if (!strategy_.optimizer_in_backward) need(norms(chunks, tensors));
  return most;
}

}  // namespace plimsoll::planner::plimsoll_stack
