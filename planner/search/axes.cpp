#include "planner/search/axes.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "models/optimizers.h"
#include "models/recompute.h"
#include "models/run_names.h"
#include "models/stack_versions.h"
#include "models/storages.h"
#include "models/zero_stage.h"
#include "planner/search/concessions.h"
#include "planner/stacks/stack_info.h"

namespace plimsoll::planner::search {

using models::Attention;
using models::Kernels;
using models::Loss;
using models::OptimizerImpl;
using models::Precision;
using models::RecomputeKind;
using models::Strategy;

namespace {

bool fixed(const Scope& scope, std::string_view axis) {
  return scope.fixed.contains(axis);
}

template <class Change>
void add(const Setting& so_far, std::vector<Setting>& out, Change change) {
  out.push_back(so_far);
  change(out.back());
}

// Adapters, precision -----------------------------------------------------------------------------

std::string adapters_value(const Setting& x) {
  return x.strategy.lora ? "lora" : "full";
}

std::string quantize_value(const Setting& x) {
  return x.strategy.quantize ? std::string(x.strategy.quantize->storage->name) : "none";
}

std::string optimizer_value(const Setting& x) {
  return std::string(models::rule_of(x.strategy.optimizer).name);
}

std::string offload_value(const Setting& x) {
  return x.strategy.offload.any() ? models::text_of(x.strategy.offload) : "none";
}

void precisions(const Scope& scope, const Setting& so_far, std::vector<Setting>& out) {
  const Strategy& base = so_far.strategy;
  if (fixed(scope, "precision")) return out.push_back(so_far);
  const bool bf16 = !scope.base.cluster.gpu || scope.base.cluster.gpu->bf16_flops;
  add(so_far, out, [&](Setting& x) {
    if (!bf16 && base.precision == Precision::bf16_mixed)
      x.strategy.precision = Precision::fp16_mixed;
  });
  if (!bf16 || base.precision != Precision::bf16_mixed || so_far.parts != 0) return;
  add(so_far, out, [](Setting& x) {
    x.strategy.precision = Precision::bf16;
    x.concession += kOtherNumerics;
  });
}

std::string precision_value(const Setting& x) {
  return std::string(name_of(x.strategy.precision));
}

std::string precision_option(const Setting& x) {
  return x.strategy.precision == Precision::bf16_mixed ? "" : "--precision " + precision_value(x);
}

// Frozen weights need no fp32 copy: PEFT's users load the base of adapters in 16 bits, as its
// checkpoint has it.
void param_dtypes(const Scope& scope, const Setting& so_far, std::vector<Setting>& out) {
  const Strategy& s = so_far.strategy;
  const bool fp16 = s.precision == Precision::fp16_mixed;
  if (fixed(scope, "param-dtype") || !s.lora || !stack_info(s.stack).mixed_is_autocast ||
      s.param_dtype || (s.precision != Precision::bf16_mixed && !fp16))
    return out.push_back(so_far);
  add(so_far, out, [&](Setting& x) { x.strategy.param_dtype = fp16 ? DType::fp16 : DType::bf16; });
}

std::string param_dtype_value(const Setting& x) {
  return x.strategy.param_dtype ? std::string(name_of(*x.strategy.param_dtype)) : "default";
}

std::string param_dtype_option(const Setting& x) {
  const bool of_base = x.strategy.lora && stack_info(x.strategy.stack).mixed_is_autocast;
  return of_base && x.strategy.param_dtype ? "--param-dtype " + param_dtype_value(x) : "";
}

// GPUs, stack, optimizer --------------------------------------------------------------------------

void gpus(const Scope& scope, const Setting& so_far, std::vector<Setting>& out) {
  for (const GpuCount& count : gpu_counts(scope))
    add(so_far, out, [&](Setting& x) {
      x.strategy.gpus = count.gpus;
      x.strategy.gpus_per_node = count.per_node;
    });
}

std::string gpus_value(const Setting& x) {
  return std::to_string(x.strategy.gpus);
}

constexpr std::int64_t kUsualNode = Strategy{}.gpus_per_node;

std::string gpus_option(const Setting& x) {
  const std::int64_t node = x.strategy.gpus_per_node;
  return "--gpus " + gpus_value(x) +
         (node == kUsualNode ? "" : " --gpus-per-node " + std::to_string(node));
}

void stacks(const Scope& scope, const Setting& so_far, std::vector<Setting>& out) {
  if (fixed(scope, "stack")) return out.push_back(so_far);
  for (const StackInfo* stack : planner::stacks())
    add(so_far, out, [&](Setting& x) {
      x.strategy.stack = stack->kind;
      if (stack->untried_on_gpus) x.concession += kUntriedStack;
    });
}

std::string stack_value(const Setting& x) {
  return std::string(name_of(x.strategy.stack));
}

std::string stack_option(const Setting& x) {
  return x.strategy.stack == Strategy{}.stack ? "" : "--stack " + stack_value(x);
}

void optimizer_impls(const Scope& scope, const Setting& so_far, std::vector<Setting>& out) {
  const Strategy& s = so_far.strategy;
  out.push_back(so_far);
  if (s.offload.params || s.offload.optimizer) return;  // it steps on the host
  if (fixed(scope, "optimizer-impl") || !stack_info(s.stack).foreach_by_default ||
      !models::rule_of(s.optimizer).torch.fused_spares())
    return;
  add(so_far, out, [](Setting& x) { x.strategy.optimizer_impl = OptimizerImpl::fused; });
}

std::string optimizer_impl_value(const Setting& x) {
  return x.strategy.optimizer_impl ? std::string(name_of(*x.strategy.optimizer_impl)) : "default";
}

std::string optimizer_impl_option(const Setting& x) {
  return x.strategy.optimizer_impl ? "--optimizer-impl " + optimizer_impl_value(x) : "";
}

// Activations -------------------------------------------------------------------------------------

// Checkpoints of k layers hold L / k inputs and, while one is recomputed, k layers: beyond sqrt(L)
// the second grows faster than the first falls, and recomputes no less.
void recomputes(const Scope& scope, const Setting& so_far, std::vector<Setting>& out) {
  if (fixed(scope, "recompute")) return out.push_back(so_far);
  const auto with = [&](RecomputeKind kind, std::int64_t every) {
    add(so_far, out, [&](Setting& x) { x.strategy.recompute = {kind, every}; });
  };
  with(RecomputeKind::none, 1);
  // A checkpoint around the core attention is code of the user's, which no Transformers before 4.53
  // lets be written outside the model (reports/export_code.h).
  const bool writes_it = !stack_info(so_far.strategy.stack).runs_transformers ||
                         so_far.strategy.transformers >= models::kMasksAreBoolean;
  if (writes_it && !concedes(so_far, kPackedBase)) with(RecomputeKind::selective, 1);
  with(RecomputeKind::full, 1);
  const std::int64_t layers = scope.base.model->decoder ? scope.base.model->decoder->layers : 1;
  for (std::int64_t k = 2; k * k < layers; ++k) with(RecomputeKind::every, k);
  with(RecomputeKind::sqrt, 1);
}

std::string recompute_value(const Setting& x) {
  return models::text_of(x.strategy.recompute);
}

std::string recompute_option(const Setting& x) {
  return x.strategy.recompute.kind == RecomputeKind::none ? ""
                                                          : "--recompute " + recompute_value(x);
}

// One switch of the Trainer, with the loss that it brings.
void kernels(const Scope& scope, const Setting& so_far, std::vector<Setting>& out) {
  out.push_back(so_far);
  const Strategy& s = so_far.strategy;
  const bool another_loss = fixed(scope, "loss") && s.loss != Loss::fused;
  if (fixed(scope, "kernels") || another_loss || !stack_info(s.stack).runs_transformers ||
      !is_transformers(s.code))
    return;
  add(so_far, out, [](Setting& x) {
    x.strategy.kernels = Kernels::liger;
    x.strategy.loss = Loss::fused;
  });
}

std::string kernels_value(const Setting& x) {
  return std::string(name_of(x.strategy.kernels));
}

std::string kernels_option(const Setting& x) {
  return x.strategy.kernels == Kernels::eager ? "" : "--kernels " + kernels_value(x);
}

void losses(const Scope& scope, const Setting& so_far, std::vector<Setting>& out) {
  const bool comes_with_kernels =
      so_far.strategy.kernels == Kernels::liger && !fixed(scope, "kernels");
  if (fixed(scope, "loss") || comes_with_kernels) return out.push_back(so_far);
  for (const Loss loss : {Loss::full, Loss::chunked, Loss::fused})
    add(so_far, out, [loss](Setting& x) { x.strategy.loss = loss; });
}

std::string loss_value(const Setting& x) {
  return std::string(name_of(x.strategy.loss));
}

std::string loss_option(const Setting& x) {
  const Loss usual = x.strategy.kernels == Kernels::liger ? Loss::fused : Loss::full;
  return x.strategy.loss == usual ? "" : "--loss " + loss_value(x);
}

void attentions(const Scope& scope, const Setting& so_far, std::vector<Setting>& out) {
  if (fixed(scope, "attention") || concedes(so_far, kPackedBase)) return out.push_back(so_far);
  for (const Attention kind : {Attention::flash, Attention::eager, Attention::math})
    add(so_far, out, [kind](Setting& x) { x.strategy.attention = kind; });
}

std::string attention_value(const Setting& x) {
  return std::string(name_of(x.strategy.attention));
}

std::string attention_option(const Setting& x) {
  return x.strategy.attention == Attention::flash ? "" : "--attention " + attention_value(x);
}

// Sharding ----------------------------------------------------------------------------------------

void zeros(const Scope& scope, const Setting& so_far, std::vector<Setting>& out) {
  const Strategy& s = so_far.strategy;
  const auto with = [&](int stage) {
    if (!takes_stage(so_far, stage)) return;
    add(so_far, out, [&](Setting& x) {
      set_zero(x.strategy, stage);
      hold_packed(x);
    });
  };
  if (fixed(scope, "zero")) return with(s.data.zero);
  for (int stage = 0; stage <= (s.gpus == 1 ? 0 : 3); ++stage) with(stage);
}

std::string zero_value(const Setting& x) {
  return std::to_string(x.strategy.data.zero);
}

std::string zero_option(const Setting& x) {
  return x.strategy.data.zero == 0 ? "" : "--zero " + zero_value(x);
}

// All ranks; then groups inside a node, the whole node first; then groups of whole nodes.
void shard_groups(const Scope& scope, const Setting& so_far, std::vector<Setting>& out) {
  out.push_back(so_far);
  const Strategy& s = so_far.strategy;
  const std::int64_t node = s.gpus_per_node, n = s.gpus;
  if (fixed(scope, "shard-group")) return;
  if (s.data.zero < stack_info(s.stack).hybrid_from_stage) return;
  const auto with = [&](std::int64_t group) {
    if (n % group == 0)
      add(so_far, out, [group](Setting& x) { x.strategy.data.shard_group = group; });
  };
  for (std::int64_t group = std::min(node, n - 1); group > 1; --group)
    if (node % group == 0) with(group);
  if (n % node != 0) return;
  for (const std::int64_t nodes : divisors(n / node))
    if (nodes > 1 && nodes * node < n) with(nodes * node);
}

std::string shard_group_value(const Setting& x) {
  return x.strategy.data.shard_group == 0 ? "all" : std::to_string(x.strategy.data.shard_group);
}

std::string shard_group_option(const Setting& x) {
  return x.strategy.data.shard_group == 0 ? "" : "--shard-group " + shard_group_value(x);
}

constexpr std::array<Axis, 15> kAxes{{
    {"adapters", adapters, adapters_value, adapters_option},
    {"gpus", gpus, gpus_value, gpus_option},
    {"stack", stacks, stack_value, stack_option},
    {"quantize", quantizations, quantize_value, quantize_option},
    {"optimizer", optimizers, optimizer_value, optimizer_option},
    {"precision", precisions, precision_value, precision_option},
    {"param-dtype", param_dtypes, param_dtype_value, param_dtype_option},
    {"offload", offloads, offload_value, offload_option},
    {"optimizer-impl", optimizer_impls, optimizer_impl_value, optimizer_impl_option},
    {"recompute", recomputes, recompute_value, recompute_option},
    {"kernels", kernels, kernels_value, kernels_option},
    {"loss", losses, loss_value, loss_option},
    {"attention", attentions, attention_value, attention_option},
    {"zero", zeros, zero_value, zero_option},
    {"shard-group", shard_groups, shard_group_value, shard_group_option},
}};

constexpr std::array<std::string_view, 8> kNotConsidered{"bases packed by others than bitsandbytes",
                                                         "offload of activations",
                                                         "tensor parallelism",
                                                         "pipeline parallelism",
                                                         "context parallelism",
                                                         "expert parallelism",
                                                         "torch.compile",
                                                         "fp8"};

}  // namespace

std::span<const Axis> axes() {
  return kAxes;
}

std::span<const std::string_view> not_considered() {
  return kNotConsidered;
}

Effort effort(const Setting& setting) {
  const Strategy& s = setting.strategy;
  const bool fsdp = stack_info(s.stack).has_fsdp;
  std::uint32_t switches = 0, code = 0;  // what no option of a trainer switches on is code
  code += fsdp && s.data.zero == 1 ? 1 : 0;  // ZeroRedundancyOptimizer
  switches += fsdp && s.data.zero == 2 ? 1 : 0;  // FSDP, told not to reshard
  switches += s.data.shard_group > 0 ? 1 : 0;
  const RecomputeKind recompute = s.recompute.kind;
  switches += recompute == RecomputeKind::full ? 1 : 0;
  code += recompute != RecomputeKind::full && recompute != RecomputeKind::none ? 1 : 0;
  const bool brought = s.loss == Loss::fused && s.kernels == Kernels::liger;
  switches += s.kernels == Kernels::liger ? 1 : 0;
  code += s.loss != Loss::full && !brought ? 1 : 0;
  switches += s.attention == Attention::eager || s.attention == Attention::flex ? 1 : 0;
  code += s.attention == Attention::math || models::is_sdpa_kernel(s.attention) ? 1 : 0;
  switches += s.optimizer_impl ? 1 : 0;
  const auto all = planner::stacks();
  const auto stack =
      static_cast<std::uint32_t>(std::ranges::find(all, s.stack, &StackInfo::kind) - all.begin());
  return {2 * stack + (s.data.zero > 0 ? 1 : 0), switches + 2 * code, code > 0};
}

std::string options_of(const Setting& setting) {
  std::string text;
  const auto append = [&](const std::string& option) {
    if (!option.empty()) text += (text.empty() ? "" : " ") + option;
  };
  for (const Axis& axis : kAxes) append(axis.option(setting));
  const models::Batch& batch = setting.batch;
  append("--seq-len " + std::to_string(batch.seq_len));
  append("--micro-batch " + std::to_string(batch.micro_batch));
  if (batch.grad_accum > 1) append("--grad-accum " + std::to_string(batch.grad_accum));
  return text;
}

}  // namespace plimsoll::planner::search
