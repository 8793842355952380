#include "planner/search/concessions.h"

#include <array>

#include "models/decisions/mesh.h"
#include "models/lora.h"
#include "models/optimizers.h"
#include "models/run_names.h"
#include "models/storages.h"
#include "planner/stacks/stack_info.h"

namespace plimsoll::planner::search {

using models::Precision;
using models::Strategy;

namespace {

constexpr std::int64_t kLoraRank = 16;
// Twice quantized: a tenth less than once, and as fast (QLoRA, arXiv 2305.14314, section 3).
constexpr const char* kPacking = "nf4-dq";

constexpr std::array<int, 15> kSums{
    0,
    kAdapters,
    kOtherNumerics,
    kUntriedStack,
    kUntriedStack + kAdapters,
    kUntriedStack + kOtherNumerics,
    kStatesIn8Bits,
    kStatesIn8Bits + kOtherNumerics,
    kPackedBase,  // the user's own adapters
    kPackedBase + kAdapters,
    kOffloadsPacked,  // the user's own base
    kPackedBase + kOffloadsPacked,
    kPackedBase + kOffloadsPacked + kAdapters,
    kOffloads,
    kOffloads + kAdapters,
};

template <class Change>
void add(const Setting& so_far, std::vector<Setting>& out, Change change) {
  out.push_back(so_far);
  change(out.back());
}

bool fixed(const Scope& scope, std::string_view axis) {
  return scope.fixed.contains(axis);
}

models::Lora own_lora(const models::ModelSpec& model) {
  return {.rank = kLoraRank,
          .alpha = 2 * kLoraRank,
          .targets = {models::usual_lora_target(model)},
          .modules_to_save = models::usual_modules_to_save(model)};
}

models::Quantization own_packing() {
  return {.storage = models::find_packed_storage(kPacking)};
}

DType sharded_in(Precision precision) {
  return precision == Precision::fp16 || precision == Precision::fp16_mixed ? DType::fp16
                                                                            : DType::bf16;
}

}  // namespace

std::span<const int> concession_sums() {
  return kSums;
}

Strategy with_parts(const Question& base, std::uint8_t parts) {
  Strategy out = base.strategy;
  if (parts & kOwnAdapters) out.lora = own_lora(*base.model);
  if (parts & (kPackedInIntegers | kPackedInFloats)) out.quantize = own_packing();
  if (parts & kPackedInFloats) out.quantize->held_in = sharded_in(out.precision);
  return out;
}

void adapters(const Scope& scope, const Setting& so_far, std::vector<Setting>& out) {
  out.push_back(so_far);
  const Strategy& s = so_far.strategy;
  if (fixed(scope, "adapters") || s.lora || !s.freeze.empty() || !s.train.empty()) return;
  add(so_far, out, [&](Setting& x) {
    x.strategy.lora = own_lora(*scope.base.model);
    x.concession += kAdapters;
    x.parts = kOwnAdapters;
  });
}

std::string adapters_option(const Setting& x) {
  if ((x.parts & kOwnAdapters) == 0) return "";
  const auto alpha = static_cast<std::int64_t>(x.strategy.lora->alpha);  // this axis' own: whole
  return "--lora-rank " + std::to_string(x.strategy.lora->rank) + " --lora-alpha " +
         std::to_string(alpha) + " --lora-targets " + x.strategy.lora->targets.front();
}

// QLoRA. Attention that is stored is not planned with it.
void quantizations(const Scope& scope, const Setting& so_far, std::vector<Setting>& out) {
  out.push_back(so_far);
  const Strategy& s = so_far.strategy;
  if (fixed(scope, "quantize") || !s.lora || s.quantize || !stack_info(s.stack).packs_bases ||
      s.precision == Precision::fp32 ||
      (fixed(scope, "attention") && !models::is_flash(s.attention)))
    return;
  add(so_far, out, [](Setting& x) {
    x.strategy.quantize = own_packing();
    x.concession += kPackedBase;
    x.parts += kPackedInIntegers;
  });
}

std::string quantize_option(const Setting& x) {
  if (!concedes(x, kPackedBase)) return "";
  const models::Quantization& q = *x.strategy.quantize;
  std::string text = "--quantize " + std::string(q.storage->name);
  if (q.held_in != DType::uint8) text += " --quant-storage " + std::string(name_of(q.held_in));
  return text;
}

void hold_packed(Setting& x) {
  const bool shards = stack_info(x.strategy.stack).has_fsdp && x.strategy.data.zero >= 2;
  if (!concedes(x, kPackedBase) || !shards) return;
  x.strategy.quantize->held_in = sharded_in(x.strategy.precision);
  x.parts += kPackedInFloats - kPackedInIntegers;
}

// Of the whole model: adapters have few states.
void optimizers(const Scope& scope, const Setting& so_far, std::vector<Setting>& out) {
  out.push_back(so_far);
  const Strategy& s = so_far.strategy;
  const auto smaller = models::rule_of(s.optimizer).in_8_bits;
  if (fixed(scope, "optimizer") || fixed(scope, "optimizer-impl") || s.lora || !smaller ||
      !stack_info(s.stack).packs_bases)
    return;
  add(so_far, out, [&](Setting& x) {
    x.strategy.optimizer = *smaller;
    x.concession += kStatesIn8Bits;
  });
}

std::string optimizer_option(const Setting& x) {
  if (!concedes(x, kStatesIn8Bits)) return "";
  return "--optimizer " + std::string(models::rule_of(x.strategy.optimizer).name);
}

// FSDP takes parameters, gradients and states together, DeepSpeed the states alone.
void offloads(const Scope& scope, const Setting& so_far, std::vector<Setting>& out) {
  out.push_back(so_far);
  const Strategy& s = so_far.strategy;
  const StackInfo& stack = stack_info(s.stack);
  const bool steps = s.optimizer == models::Optimizer::adamw && !s.optimizer_impl;
  if (fixed(scope, "offload") || !models::decisions::mesh_of(s).communicates() ||
      s.precision == Precision::fp16_mixed || !steps ||
      !(stack.has_fsdp || stack.offloads_optimizer))
    return;
  if (stack.offloads_optimizer && (s.precision != Precision::bf16_mixed || s.grad_dtype)) return;
  if (s.quantize && !stack.has_fsdp) return;  // adapters have few states
  // FSDP's shards are as large in mixed precision, once they are cast.
  if (concedes(so_far, kOtherNumerics)) return;
  add(so_far, out, [&](Setting& x) {
    (stack.has_fsdp ? x.strategy.offload.params : x.strategy.offload.optimizer) = true;
    x.concession += s.quantize ? kOffloadsPacked : kOffloads;
  });
}

std::string offload_option(const Setting& x) {
  if (!concedes(x, kOffloads) && !concedes(x, kOffloadsPacked)) return "";
  return x.strategy.offload.params ? "--offload params" : "--offload optimizer";
}

bool takes_stage(const Setting& x, int stage) {
  const Strategy& s = x.strategy;
  if (concedes(x, kOffloads) || concedes(x, kOffloadsPacked))
    if (stage < (s.offload.params ? 2 : 1)) return false;
  const StackInfo& stack = stack_info(s.stack);
  if (concedes(x, kPackedBase) && stage > stack.packs_to_stage) return false;
  if (concedes(x, kPackedBase) && stage == 2 && s.data.fsdp_version == 1) return false;
  if (!concedes(x, kStatesIn8Bits) || !stack.has_fsdp) return true;
  const models::TorchOptimizer& torch = models::rule_of(s.optimizer).torch;
  const char* const why = stage == 0                 ? nullptr
                          : stage == 1               ? torch.refusal_zero1
                          : s.data.fsdp_version == 1 ? torch.refusal_fsdp1
                                                     : torch.refusal_fsdp2;
  return why == nullptr;
}

}  // namespace plimsoll::planner::search
