// Rows of models/optimizers.h for steps that go as torch.optim's go: over lists, or one by one.
#pragma once

#include "models/optimizer_packages.h"

namespace plimsoll::models::optimizer_rows {

inline constexpr std::array kSchedule{StateTensor{z}, StateTensor{exp_avg_sq}};
inline constexpr std::array kScheduleSgd{StateTensor{z}};
inline constexpr std::array kSum{StateTensor{sum}};
// What the next parameter's takes the place of.
inline constexpr std::array kOneRoot{Moment{.slot = 0}};

// schedulefree 1.4.1: `denom` by foreach, a list; SGD steps in place.
constexpr OptimizerRule schedule_free(Optimizer kind, std::string_view name, bool adaptive,
                                      const char* trainer) {
  OptimizerRule out{.kind = kind, .name = name};
  out.unfused = {.values = 9, .passes = 3};  // lerp_ 3, add_ 3, sub_ 3
  out.states = kScheduleSgd;
  // Not while it is in eval mode: between train() and eval() all names are the same.
  out.torch = {.refusal_zero1 = "ZeroRedundancyOptimizer knows no train() and eval()",
               .refusal_fused = "schedulefree's optimizers have foreach and for-loop"};
  if (adaptive) {
    out.states = kSchedule;
    out.unfused = {.values = 23,
                   .passes = 9};  // mul_ 2, addcmul_ 3, div 2, sqrt_ 2, add_ 2, div_ 3
    out.torch.temporary = "denom";
    out.torch.moments = kOneRoot;
  }
  out.trainer = {
      .name = trainer,
      .argument = "lr_scheduler_type=\"constant\"",
      .note = "schedule-free optimizers have no schedule; Trainer calls train() and eval()"};
  return out;
}

inline constexpr OptimizerRule kScheduleFreeAdamW = schedule_free(
    Optimizer::schedule_free_adamw, "schedule-free-adamw", true, "schedule_free_adamw");
inline constexpr OptimizerRule kScheduleFreeSgd =
    schedule_free(Optimizer::schedule_free_sgd, "schedule-free-sgd", false, "schedule_free_sgd");
inline constexpr OptimizerRule kScheduleFreeRAdam = schedule_free(
    Optimizer::schedule_free_radam, "schedule-free-radam", true, "schedule_free_radam");

// torch 2.11, optim/rmsprop.py, neither centered nor with momentum: mul_ 2, addcmul_ 3, sqrt 2,
// add_ 2, addcdiv_ 4. optim/adagrad.py: addcmul_ 3, sqrt 2, add_ 2, the gradients times -lr 2,
// addcdiv_ 4; for-loop's addcdiv_ takes the gradient itself.
inline constexpr OptimizerRule kRmsprop{
    .kind = Optimizer::rmsprop,
    .name = "rmsprop",
    .states = kSquareAvg,
    .unfused = {.values = 13, .passes = 5},
    .torch = {.refusal_fused = "torch.optim.RMSprop has foreach and for-loop",
              .temporary = "square_avg.sqrt",
              .moments = kOneRoot,
              .assumption = "without weight decay, which makes one list more",
              .source = "torch 2.11, optim/rmsprop.py"},
    .trainer = {.name = "rmsprop"}};
inline constexpr OptimizerRule kAdagrad{
    .kind = Optimizer::adagrad,
    .name = "adagrad",
    .states = kSum,
    .unfused = {.values = 13, .passes = 5},
    .torch = {.refusal_fused = "torch.optim.Adagrad's fused kernel is for CPUs",
              .temporary = "sum.sqrt",
              .lists = 2,
              .moments = kOneRoot,
              .assumption = "without weight decay, which makes one list more",
              .source = "torch 2.11, optim/adagrad.py"},
    .trainer = {.name = "adagrad"}};

// torch-optimi 0.3.3, stableadamw.py: Triton's two kernels for each parameter, in place. Kahan's
// compensation of 16-bit parameters, of others a byte.
inline constexpr std::array kStableStates{
    StateTensor{.name = exp_avg},
    StateTensor{.name = exp_avg_sq},
    StateTensor{.name = eps_sq, .extent = Extent::one},
    StateTensor{.name = kahan_comp, .of = Of::in_16_bits},
    StateTensor{
        .name = kahan_comp, .extent = Extent::one, .of = Of::in_fp32, .dtype = DType::uint8},
    StateTensor{.name = mean_square, .extent = Extent::one, .dtype = DType::fp32}};
inline constexpr OptimizerRule kStableAdamW{
    .kind = Optimizer::stable_adamw,
    .name = "stable-adamw",
    .states = kStableStates,
    .unfused = {.values = 10, .passes = 2},
    .torch = {.refusal_zero1 = "ZeroRedundancyOptimizer around torch-optimi is not verified",
              .refusal_fsdp1 = "torch-optimi on FSDP1's flat parameters is not verified",
              .refusal_fsdp2 = "torch-optimi's Triton kernels on DTensors are not verified",
              .package = "torch-optimi",
              .assumption = "Triton's kernels, and Kahan's sums for 16-bit parameters",
              .source = "torch-optimi 0.3.3, optimi/stableadamw.py"},
    .trainer = {.name = "stable_adamw"}};

}  // namespace plimsoll::models::optimizer_rows
