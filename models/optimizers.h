// One row for each optimizer. A new one is its row and, for our own runtime, its kernel
// (kernels/optimizer_kernels.h, runtime/optimizer.cpp).
#pragma once

#include <array>
#include <string>

#include "models/apollo_rows.h"
#include "models/galore_rows.h"
#include "models/grokadamw_rows.h"
#include "models/lomo_rows.h"
#include "models/optimizer_packages.h"
#include "models/optimizer_rule.h"
#include "models/q_galore_rows.h"
#include "models/schedule_free_rows.h"
#include "models/torchao_rows.h"

namespace plimsoll::models {

// In the order of the enumerators.
//
// Passes. torch/optim/adam.py: p *= 2, lerp m 3, v *= 2, addcmul 3, sqrt 2, / 2, + 2, addcdiv
// 4: 20. sgd.py with momentum: buffer *= 2, += 3, p += 3: 8. Adafactor (transformers,
// optimization.py): g ** 2 2, + eps 2, two means 2, outer product 1, * g 3, its norm 1, two
// scalings 4, -update 2, p += 3, p's norm 1: 21 in 11 passes.
inline constexpr std::array kOptimizers{
    OptimizerRule{.kind = Optimizer::adamw,
                  .name = "adamw",
                  .states = optimizer_rows::kAdam,
                  .unfused = {.values = 20, .passes = 8},
                  .in_runtime = true,
                  .in_8_bits = Optimizer::adam8bit,
                  .torch = {.temporary = "exp_avg_sq.sqrt",
                            .moments = optimizer_rows::kAdamMoments,
                            .counts_on_device = true},
                  .deepspeed = {.type = "AdamW",
                                .other_type = "Adam",
                                .steps_flat = true,
                                .tested = true,
                                .trainer_settings = optimizer_rows::kAdamSettings},
                  .trainer = {.name = "adamw_torch", .fused = "adamw_torch_fused"}},
    OptimizerRule{.kind = Optimizer::sgd,
                  .name = "sgd",
                  .in_runtime = true,
                  .torch = {},
                  .deepspeed = {.type = "SGD", .trainer_settings = optimizer_rows::kSgdSettings},
                  .trainer = {.name = "sgd"}},
    OptimizerRule{.kind = Optimizer::momentum,
                  .name = "momentum",
                  .states = optimizer_rows::kMomentum,
                  .unfused = {.values = 8, .passes = 3},
                  .in_runtime = true,
                  .torch = {},
                  .deepspeed = {.refusal_unsharded = "is not modelled yet",
                                .type = "SGD",
                                .setting = "momentum",
                                .setting_value = "0.9",
                                .trainer_settings = optimizer_rows::kSgdSettings},
                  .trainer = {.name = "sgd", .argument = "optim_args=\"momentum=0.9\""}},
    optimizer_rows::in_runtime(optimizer_rows::bitsandbytes(Optimizer::adam8bit, "adam8bit",
                                                            optimizer_rows::kAdam, 8, false,
                                                            {.name = "adamw_bnb_8bit"})),
    optimizer_rows::bitsandbytes(Optimizer::paged_adam8bit, "paged-adam8bit", optimizer_rows::kAdam,
                                 8, true, {.name = "paged_adamw_8bit"}),
    optimizer_rows::bitsandbytes(Optimizer::paged_adamw, "paged-adamw", optimizer_rows::kAdam, 32,
                                 true, {.name = "paged_adamw_32bit"}),
    OptimizerRule{.kind = Optimizer::adafactor,
                  .name = "adafactor",
                  .states = optimizer_rows::kFactored,
                  .unfused = {.values = 21, .passes = 11},
                  .torch = optimizer_rows::kAdafactor,
                  .trainer = {.name = "adafactor"}},
    // Chen et al. 2023 (arXiv 2302.06675), algorithm 2. DeepSpeed's FusedLion (ops/lion) is no
    // FusedAdam: stage 0 steps each parameter. Its betas are AdamW's unless the file says
    // otherwise. torch.optim has none: Trainer's is bitsandbytes'.
    [] {
      OptimizerRule lion = optimizer_rows::in_runtime(
          optimizer_rows::bitsandbytes(
              Optimizer::lion, "lion", optimizer_rows::kLion, 32, false,
              {.name = "lion_32bit",
               .argument = optimizer_rows::kLionBeta,
               .note = "optim=\"lion_32bit\" is bitsandbytes' Lion, in fp32"}),
          0.99f);
      lion.deepspeed = {.type = "Lion",
                        .tested = true,
                        .setting = "betas",
                        .setting_value = "[0.9, 0.99]",
                        .trainer_settings = optimizer_rows::kSgdSettings};
      return lion;
    }(),
    optimizer_rows::in_runtime(optimizer_rows::bitsandbytes(
                                   Optimizer::lion8bit, "lion8bit", optimizer_rows::kLion, 8, false,
                                   {.name = "lion_8bit", .argument = optimizer_rows::kLionBeta}),
                               0.99f),
    optimizer_rows::bitsandbytes(
        Optimizer::paged_lion8bit, "paged-lion8bit", optimizer_rows::kLion, 8, true,
        {.name = "paged_lion_8bit", .argument = optimizer_rows::kLionBeta}),
    optimizer_rows::bitsandbytes(
        Optimizer::paged_lion, "paged-lion", optimizer_rows::kLion, 32, true,
        {.name = "paged_lion_32bit", .argument = optimizer_rows::kLionBeta}),
    optimizer_rows::bitsandbytes(Optimizer::ademamix, "ademamix", optimizer_rows::kAdEMAMix, 32,
                                 false, {.name = "ademamix"}),
    optimizer_rows::bitsandbytes(Optimizer::ademamix8bit, "ademamix8bit", optimizer_rows::kAdEMAMix,
                                 8, false, {.name = "ademamix_8bit"}),
    optimizer_rows::bitsandbytes(Optimizer::paged_ademamix, "paged-ademamix",
                                 optimizer_rows::kAdEMAMix, 32, true,
                                 {.name = "paged_ademamix_32bit"}),
    optimizer_rows::bitsandbytes(Optimizer::paged_ademamix8bit, "paged-ademamix8bit",
                                 optimizer_rows::kAdEMAMix, 8, true,
                                 {.name = "paged_ademamix_8bit"}),
    // lerp_ 3, lerp 3, the cast 1.5, its norm 0.5, / 1, p * 2, p + 2.5; 15 GEMMs and 8 kernels.
    OptimizerRule{.kind = Optimizer::muon,
                  .name = "muon",
                  .states = optimizer_rows::kMomentum,
                  .unfused = {.values = 13.5, .passes = 8, .iterations = 5},
                  .rest = Optimizer::adamw,
                  .torch = optimizer_rows::kMuon},
    optimizer_rows::kGaLoreAdamW,
    optimizer_rows::kGaLoreAdamW8bit,
    optimizer_rows::kQGaLoreAdamW8bit,
    optimizer_rows::kLomo,
    optimizer_rows::kTorchaoAdam8bit,
    optimizer_rows::kTorchaoAdam4bit,
    optimizer_rows::kTorchaoAdamFp8,
    optimizer_rows::kScheduleFreeAdamW,
    optimizer_rows::kScheduleFreeSgd,
    optimizer_rows::kScheduleFreeRAdam,
    optimizer_rows::kApollo,
    optimizer_rows::kApolloMini,
    optimizer_rows::kAdamMini,
    optimizer_rows::kAdaLomo,
    optimizer_rows::kRmsprop,
    optimizer_rows::kRmspropBnb,
    optimizer_rows::kRmsprop8bit,
    optimizer_rows::kAdagrad,
    optimizer_rows::kStableAdamW,
    optimizer_rows::kGrokAdamW,
};

constexpr const OptimizerRule& rule_of(Optimizer kind) {
  return kOptimizers[static_cast<std::size_t>(kind)];
}

// "adamw, sgd and momentum": the optimizers that `wanted` is true of.
std::string optimizer_names(bool (*wanted)(const OptimizerRule&));

// Error{unsupported}: the stack has it not, or it is not planned there.
void check_optimizer(const Strategy& strategy);

}  // namespace plimsoll::models
