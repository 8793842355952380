// What APOLLO and Adam-mini keep and make, for rows of models/optimizers.h.
#pragma once

#include "models/galore_rows.h"

namespace plimsoll::models::optimizer_rows {

// apollo_torch 1.0.3, apollo.py and random_projector.py. The random basis is in the gradient's
// dtype; scaled_grad is the norm that the next step's limiter reads.
inline constexpr std::array kApolloStates{
    StateTensor{.name = projector, .extent = Extent::projector, .of = Of::projected},
    StateTensor{.name = exp_avg, .extent = Extent::low_rank, .of = Of::projected},
    StateTensor{.name = exp_avg_sq, .extent = Extent::low_rank, .of = Of::projected},
    StateTensor{.name = scaled_grad, .extent = Extent::one, .of = Of::projected},
    StateTensor{.name = exp_avg, .of = Of::whole},
    StateTensor{.name = exp_avg_sq, .of = Of::whole}};

// Variables of AdamW.step's loop, and nameless values.
namespace apollo_slot {
enum : std::uint8_t {
  low,
  denom,
  norm,
  factor,
  scaled,
  scaled_norm,
  matrix,
  random,
  basis,
  limiter
};
}

// get_orthogonal_matrix, every update_proj_gap steps: the gradient in fp32, numbers of the shape of
// a basis, those divided by sqrt(rank), and cast.
inline constexpr std::array kRandomBasis{
    Moment{.does = Does::let_go, .slot = apollo_slot::low},
    Moment{.slot = apollo_slot::matrix, .dtype = DType::fp32, .of = Of::projected_in_16_bits},
    Moment{.slot = apollo_slot::random,
           .dtype = DType::fp32,
           .extent = Extent::projector,
           .of = Of::projected},
    Moment{.slot = apollo_slot::basis,
           .dtype = DType::fp32,
           .extent = Extent::projector,
           .of = Of::projected},
    Moment{.does = Does::let_go, .slot = apollo_slot::random},
    Moment{.slot = apollo_slot::basis, .extent = Extent::projector, .of = Of::projected_in_16_bits},
    Moment{.does = Does::let_go, .slot = apollo_slot::matrix},
    Moment{.does = Does::let_go, .slot = apollo_slot::basis}};

inline constexpr std::array kApolloAverages{
    Moment{.slot = apollo_slot::low, .extent = Extent::low_rank, .of = Of::projected},
    Moment{.slot = apollo_slot::denom, .extent = Extent::low_rank, .of = Of::projected},
    Moment{.slot = apollo_slot::denom, .of = Of::whole},
    Moment{.slot = apollo_slot::norm, .extent = Extent::low_rank, .of = Of::projected},
    Moment{.slot = apollo_slot::norm, .of = Of::whole}};

// norm_grad's lengths by those of the gradient, a channel's or the whole tensor's.
template <Extent lengths>
inline constexpr std::array kApolloFactor{
    Moment{.slot = apollo_slot::matrix, .extent = lengths, .of = Of::projected},
    Moment{.slot = apollo_slot::random, .extent = lengths, .of = Of::projected},
    Moment{.slot = apollo_slot::basis, .extent = lengths, .of = Of::projected},
    Moment{.does = Does::let_go, .slot = apollo_slot::random},
    Moment{.slot = apollo_slot::factor, .extent = lengths, .of = Of::projected},
    Moment{.does = Does::let_go, .slot = apollo_slot::matrix},
    Moment{.does = Does::let_go, .slot = apollo_slot::basis}};

// The scaled gradient, its norm, and the limiter's quotient of it, which norm_grad then names.
inline constexpr std::array kApolloScaled{
    Moment{.slot = apollo_slot::scaled, .of = Of::projected},
    Moment{.slot = apollo_slot::scaled_norm, .extent = Extent::one, .of = Of::projected},
    Moment{.slot = apollo_slot::limiter, .extent = Extent::one, .of = Of::projected},
    Moment{.slot = apollo_slot::scaled, .of = Of::projected},
    Moment{.does = Does::let_go, .slot = apollo_slot::norm, .of = Of::projected}};

template <Extent lengths>
inline constexpr std::array kApolloMoments = joined(kRandomBasis, kApolloAverages,
                                                    kApolloFactor<lengths>, kApolloScaled);

constexpr TorchOptimizer apollo(std::int64_t rank, std::span<const Moment> moments) {
  return {.refusal_zero1 = "APOLLO inside ZeroRedundancyOptimizer is not modelled yet",
          .refusal_fsdp1 = "APOLLO projects whole matrices; FSDP1's parts are vectors",
          .refusal_fsdp2 = "APOLLO projects whole matrices, and FSDP2's are sharded",
          .package = "apollo_torch",
          .moments = moments,
          .assumption = "every matrix of a layer is projected, in a step that makes the bases anew",
          .source = "apollo_torch 1.0.3, apollo.py and random_projector.py",
          .projects_to = rank};
}

// AdamW's passes over rank r, a GEMM with the basis, then g * 3, its norm 1, / 2, p + 3.
constexpr OptimizerRule apollo_row(Optimizer kind, std::string_view name, TorchOptimizer torch) {
  return {.kind = kind,
          .name = name,
          .states = kApolloStates,
          .unfused = {.values = 10, .passes = 20},
          .torch = torch};
}
inline constexpr OptimizerRule kApollo =
    apollo_row(Optimizer::apollo, "apollo", apollo(128, kApolloMoments<Extent::greater>));
inline constexpr OptimizerRule kApolloMini =
    apollo_row(Optimizer::apollo_mini, "apollo-mini", apollo(1, kApolloMoments<Extent::one>));

// adam_mini 1.1.1: a value of the second moment for each row of a matrix, one for a vector.
inline constexpr std::array kAdamMiniStates{
    StateTensor{.name = exp_avg},
    StateTensor{.name = vmean, .extent = Extent::rows, .of = Of::matrices},
    StateTensor{.name = vmean, .extent = Extent::one, .of = Of::vectors}};

// Slots of step(): a nameless product, tmp_lr, h, stepsize, update.
inline constexpr std::array kAdamMiniMoments{
    Moment{.slot = 0},  // grad * grad
    Moment{.slot = 1, .extent = Extent::rows, .of = Of::matrices},
    Moment{.slot = 1, .extent = Extent::one, .of = Of::vectors},
    Moment{.does = Does::let_go, .slot = 0},
    Moment{.slot = 2, .extent = Extent::rows, .of = Of::matrices},
    Moment{.slot = 2, .extent = Extent::one, .of = Of::vectors},
    Moment{.slot = 3, .extent = Extent::rows, .of = Of::matrices},
    Moment{.slot = 3, .extent = Extent::one, .of = Of::vectors},
    Moment{.slot = 4},
    Moment{.slot = 0},  // -update
    Moment{.does = Does::let_go, .slot = 0}};

inline constexpr TorchOptimizer kAdamMiniStep{
    .refusal_zero1 = "Adam-mini inside ZeroRedundancyOptimizer is not verified",
    .refusal_fsdp1 = "Adam-mini goes by names of parameters; FSDP1's are flat",
    .refusal_fsdp2 = "what Adam-mini makes of DTensors is not modelled yet",
    .package = "adam_mini",
    .moments = kAdamMiniMoments,
    .assumption =
        "the second moment: a value for each row of a matrix, one for a vector (the "
        "package: one for each head of queries and keys, one for each value of a bias)",
    .source = "adam_mini 1.1.1, adam_mini.py",
    .in_backward = false};

// g * g 3, its mean 1, lerp_ 3, m * 2, * lr 2, -update 2, p + 3.
inline constexpr OptimizerRule kAdamMini{.kind = Optimizer::adam_mini,
                                         .name = "adam-mini",
                                         .states = kAdamMiniStates,
                                         .unfused = {.values = 16, .passes = 12},
                                         .torch = kAdamMiniStep};

}  // namespace plimsoll::models::optimizer_rows
