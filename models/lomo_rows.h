// What LOMO and AdaLomo (lomo_optim 0.1.1) keep and make, for rows of models/optimizers.h. A hook
// in front of each gradient's accumulation steps the parameter whose gradient came before it
// (fuse_update), and fused_backward the last one.
#pragma once

#include "models/optimizer_packages.h"

namespace plimsoll::models::optimizer_rows {

// lomo.py. Slots: grad_fp32, p_fp32. What is in fp32 is not copied.
inline constexpr std::array kLomoMoments{
    Moment{.slot = 0, .dtype = DType::fp32, .of = Of::in_16_bits},
    Moment{.does = Does::give, .of = Of::in_16_bits},  // p.grad = None
    Moment{.slot = 1, .dtype = DType::fp32, .of = Of::in_16_bits}};

// adalomo.py. Slots: grad_fp32, update, a value without a name, r_factor, c_factor, p_fp32.
inline constexpr std::array kAdaLomoMoments{
    Moment{.slot = 0, .dtype = DType::fp32, .of = Of::in_16_bits},
    Moment{.does = Does::give, .of = Of::in_16_bits},
    Moment{.slot = 2, .dtype = DType::fp32},  // grad_fp32 ** 2
    Moment{.slot = 1, .dtype = DType::fp32},
    Moment{.slot = 2, .dtype = DType::fp32, .extent = Extent::rows, .of = Of::matrices},
    Moment{.does = Does::let_go, .slot = 2},
    Moment{.slot = 2, .dtype = DType::fp32, .extent = Extent::columns, .of = Of::matrices},
    Moment{.does = Does::sum_rows, .of = Of::matrices},  // update.mean(dim=-2)
    Moment{.does = Does::let_go, .slot = 2},
    Moment{.slot = 3, .dtype = DType::fp32, .extent = Extent::rows, .of = Of::matrices},
    Moment{.slot = 4, .dtype = DType::fp32, .extent = Extent::columns, .of = Of::matrices},
    Moment{.slot = 1, .dtype = DType::fp32},  // of both factors, or exp_avg_sq.rsqrt()
    Moment{.does = Does::let_go, .slot = 3},
    Moment{.does = Does::let_go, .slot = 4},
    Moment{.slot = 5, .dtype = DType::fp32, .of = Of::in_16_bits}};

constexpr TorchOptimizer lomo_step(std::span<const Moment> moments, const char* source) {
  constexpr const char* kOneGpu = "lomo_optim is modelled on one GPU";
  return {.refusal_zero1 = kOneGpu,
          .refusal_fsdp1 = kOneGpu,
          .refusal_fsdp2 = kOneGpu,
          .package = "lomo_optim",
          .moments = moments,
          .state_dtype = DType::fp32,
          .assumption = "each parameter is stepped when the next one's gradient is there",
          .source = source,
          .behind = true};
}

// In 16 bits, of 2 bytes: both casts 3 each, p_fp32 + 6, its copy 3.
inline constexpr OptimizerRule kLomo{
    .kind = Optimizer::lomo,
    .name = "lomo",
    .unfused = {.values = 15, .passes = 4},
    .torch = lomo_step(kLomoMoments, "lomo_optim 0.1.1, lomo.py, fuse_update"),
    .trainer = {.name = "lomo"}};
// Beside those: / 4, g ** 2 4, + eps 4, two means 4, the product 2, * g 6, its norm 2, / 4, p's 2.
inline constexpr OptimizerRule kAdaLomo{
    .kind = Optimizer::adalomo,
    .name = "adalomo",
    .states = kFactored,
    .unfused = {.values = 47, .passes = 14},
    .torch = lomo_step(kAdaLomoMoments, "lomo_optim 0.1.1, adalomo.py, fuse_update"),
    .trainer = {.name = "adalomo"}};

}  // namespace plimsoll::models::optimizer_rows
