#include "planner/search/words.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "models/decisions/mesh.h"
#include "models/recompute.h"
#include "models/run_names.h"
#include "models/storages.h"
#include "planner/search/concessions.h"
#include "planner/stacks/stack_info.h"

namespace plimsoll::planner::search {

std::string gib(Bytes bytes) {
  const double value = bytes.real() / (1 << 30);
  if (value >= 1024) return fmt::format("{:.3g} TiB", value / 1024);
  if (value < 0.1) return fmt::format("{:.0f} MiB", 1024 * value);
  return value < 10 ? fmt::format("{:.2f} GiB", value) : fmt::format("{:.1f} GiB", value);
}

std::string seconds(double s) {
  return s < 1 ? fmt::format("{:.0f} ms", 1000 * s) : fmt::format("{:.2f} s", s);
}

std::string percent(double share) {
  const double p = 100 * share;
  return p < 0.95 ? fmt::format("{:.2f} %", p) : fmt::format("{:.1f} %", p);
}

std::string rung_name(models::Stack stack, int zero) {
  return stack_info(stack).rungs[static_cast<std::size_t>(zero)];
}

namespace {
// FSDP's policy and DeepSpeed cast the modules once.
bool autocasts(const models::Strategy& s) {
  return stack_info(s.stack).mixed_is_autocast && s.data.zero < 2 && is_mixed(s.precision);
}
}  // namespace

std::string why_longer(const Setting& first, const Setting& other, bool sends_more,
                       bool python_gelu) {
  const models::Strategy &mine = first.strategy, &s = other.strategy;
  if (mine.kernels == models::Kernels::liger && s.kernels == models::Kernels::eager)
    return " (its norms, rotary embedding and activations are several kernels each)";
  if (s.recompute != mine.recompute && s.recompute.kind != models::RecomputeKind::none)
    return fmt::format(" (it must recompute: {})", models::text_of(s.recompute));
  if (autocasts(s) && !autocasts(mine) && s.lora && s.param_dtype)
    return " (PEFT keeps adapters in fp32: autocast casts what each of them reads)";
  if (autocasts(s) && !autocasts(mine))
    return python_gelu ? " (autocast computes gelu_new and the residual stream in fp32)"
                       : " (autocast casts the weights and keeps the residual stream in fp32)";
  const std::int64_t batch = other.batch.micro_batch;
  if (batch < first.batch.micro_batch) return fmt::format(" (its micro-batch is {})", batch);
  return sends_more ? " (collectives beside it take their share of the GPU)" : "";
}

std::string parts_of_step(const StepTime& time) {
  std::string text =
      fmt::format("A step takes {}: {} of compute", seconds(time.step), seconds(time.compute));
  if (time.communication > 0)
    text += fmt::format(", {} of communication that is not hidden (of {})",
                        seconds(time.exposed_communication), seconds(time.communication));
  return text + fmt::format(", {} for the optimizer. The limit is {}.", seconds(time.optimizer),
                            name_of(time.limit));
}

std::vector<std::string> costs_of_concessions(const Setting& x, const reports::Plan& plan) {
  std::vector<std::string> out;
  const models::Strategy& s = x.strategy;
  if (concedes(x, kStatesIn8Bits))
    out.push_back("Optimizer states in 8 bits are a concession: 256 values share a scale.");
  if (concedes(x, kPackedBase))
    out.push_back(
        fmt::format("A packed base is a concession: its frozen weights are rounded to 4 bits ({}), "
                    "and every GEMM makes them anew in 16.",
                    s.quantize->storage->name));
  if (concedes(x, kOffloads) || concedes(x, kOffloadsPacked))
    out.push_back(fmt::format(
        "Offloading is a concession: {} of each node's memory hold {}, and what a layer needs "
        "comes "
        "from there in every step. How long that takes is not predicted: plans stand in the order "
        "of what they compute.",
        gib((plan.host_pinned + plan.host_pageable) *
            models::decisions::mesh_of(s).ranks_in_node()),
        s.offload.params ? "parameters, gradients and optimizer states"
                         : "the optimizer's states"));
  if (s.precision == models::Precision::bf16)
    out.push_back(fmt::format("Pure bf16 is a concession: {}.", kPureRisk));
  return out;
}

std::string in_brackets(double slower) {
  if (std::abs(slower) < 5e-4) return "";
  return fmt::format(" ({} {})", percent(std::abs(slower)), slower > 0 ? "slower" : "faster");
}

}  // namespace plimsoll::planner::search
