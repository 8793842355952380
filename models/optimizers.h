// One row for each optimizer. A new one is its row and, for our own runtime, its kernel
// (kernels/optimizer_kernels.h, runtime/optimizer.cpp).
#pragma once

#include <array>
#include <string>

#include "models/optimizer_rule.h"

namespace plimsoll::models {

namespace optimizer_rows {
using enum OptimizerState;
inline constexpr std::array kAdam{exp_avg, exp_avg_sq};
inline constexpr std::array kMomentum{momentum_buffer};
inline constexpr std::array<const char*, 4> kAdamSettings{"lr", "betas", "eps", "weight_decay"};
inline constexpr std::array<const char*, 2> kSgdSettings{"lr", "weight_decay"};
inline constexpr std::array kLion{exp_avg};
}  // namespace optimizer_rows

// In the order of the enumerators.
//
// Traffic. Fused AdamW reads p, g, m, v and writes p, m, v: 7. torch/optim/adam.py otherwise, a
// pass each: p *= 2, lerp m 3, v *= 2, addcmul 3, sqrt 2, / 2, + 2, addcdiv 4: 20. SGD: 3, with
// momentum 5.
inline constexpr std::array<OptimizerRule, 12> kOptimizers{{
    {.kind = Optimizer::adamw,
     .name = "adamw",
     .states = optimizer_rows::kAdam,
     .fused = {.values = 7},
     .unfused = {.values = 20, .passes = 8},
     .in_runtime = true,
     .torch = {.temporary = "exp_avg_sq.sqrt", .counts_on_device = true},
     .deepspeed = {.type = "AdamW",
                   .other_type = "Adam",
                   .steps_flat = true,
                   .tested = true,
                   .trainer_settings = optimizer_rows::kAdamSettings},
     .trainer = {.name = "adamw_torch", .fused = "adamw_torch_fused"}},
    {.kind = Optimizer::sgd,
     .name = "sgd",
     .fused = {.values = 3},
     .unfused = {.values = 3},
     .in_runtime = true,
     .torch = {},
     .deepspeed = {.type = "SGD", .trainer_settings = optimizer_rows::kSgdSettings},
     .trainer = {.name = "sgd"}},
    {.kind = Optimizer::momentum,
     .name = "momentum",
     .states = optimizer_rows::kMomentum,
     .fused = {.values = 5},
     .unfused = {.values = 5},
     .in_runtime = true,
     .torch = {},
     .deepspeed = {.refusal_unsharded = "is not modelled yet",
                   .type = "SGD",
                   .setting = "momentum",
                   .setting_value = "0.9",
                   .trainer_settings = optimizer_rows::kSgdSettings},
     .trainer = {.name = "sgd", .argument = "optim_args=\"momentum=0.9\""}},
    {.kind = Optimizer::adam8bit, .name = "adam8bit"},
    {.kind = Optimizer::paged_adam8bit, .name = "paged-adam8bit"},
    {.kind = Optimizer::adafactor, .name = "adafactor"},
    // Chen et al. 2023 (arXiv 2302.06675), algorithm 2. DeepSpeed's FusedLion (ops/lion) is no
    // FusedAdam: stage 0 steps each parameter. Its betas are AdamW's unless the file says
    // otherwise.
    {.kind = Optimizer::lion,
     .name = "lion",
     .states = optimizer_rows::kLion,
     .fused = {.values = 5},
     .in_runtime = true,
     .beta2 = 0.99f,
     .torch = {.refusal = "torch.optim has no Lion"},
     .deepspeed = {.type = "Lion",
                   .tested = true,
                   .setting = "betas",
                   .setting_value = "[0.9, 0.99]",
                   .trainer_settings = optimizer_rows::kSgdSettings},
     .trainer = {.name = "lion_32bit",
                 .argument = "adam_beta2=0.99",
                 .note = "optim=\"lion_32bit\" is bitsandbytes' Lion, in fp32"}},
    {.kind = Optimizer::muon, .name = "muon"},
    {.kind = Optimizer::galore, .name = "galore"},
    {.kind = Optimizer::galore8bit, .name = "galore8bit"},
    {.kind = Optimizer::q_galore, .name = "q-galore"},
    {.kind = Optimizer::lomo, .name = "lomo"},
}};

constexpr const OptimizerRule& rule_of(Optimizer kind) {
  return kOptimizers[static_cast<std::size_t>(kind)];
}

// "adamw, sgd and momentum": the optimizers that `wanted` is true of.
std::string optimizer_names(bool (*wanted)(const OptimizerRule&));

// Error{unsupported}: the stack has it not, or it is not planned there.
void check_optimizer(const Strategy& strategy);

}  // namespace plimsoll::models
