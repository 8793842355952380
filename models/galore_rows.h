// What GaLore's optimizers (galore_torch 1.0) keep and make, for rows of models/optimizers.h.
#pragma once

#include "models/optimizer_packages.h"

namespace plimsoll::models::optimizer_rows {

// galore_projector.py: bases are cut out of the SVD's, and cast to the gradient's dtype; of a
// gradient in fp32 the cut is a view, which keeps the SVD's whole square one alive.
inline constexpr StateTensor kProjector{.name = OptimizerState::projector,
                                        .extent = Extent::projector,
                                        .of = Of::projected_in_16_bits,
                                        .plain = true};
inline constexpr StateTensor kWholeProjector{.name = OptimizerState::projector,
                                             .extent = Extent::square,
                                             .of = Of::projected_in_fp32,
                                             .plain = true};
inline constexpr std::array kGaLoreStates{
    kProjector,
    kWholeProjector,
    StateTensor{.name = exp_avg, .extent = Extent::low_rank, .of = Of::projected},
    StateTensor{.name = exp_avg_sq, .extent = Extent::low_rank, .of = Of::projected},
    StateTensor{.name = exp_avg, .of = Of::whole},
    StateTensor{.name = exp_avg_sq, .of = Of::whole}};

// Variables of their loops. `full`: of project_back; of get_orthogonal_matrix the others.
enum GaLoreSlot : std::uint8_t { grad, matrix, full, u, vh, s, copy, a, denom, norm_grad };
static_assert(norm_grad < kMomentSlots);

// get_orthogonal_matrix (every update_proj_gap steps, the first among them): the gradient in fp32,
// torch.linalg.svd (U, Vh, S and the copy that cuSOLVER overwrites: BatchLinearAlgebra.cpp,
// linalg_svd; its own workspace is not known), diag(s), the unused GEMM with it, and the cast.
inline constexpr std::array kDecomposition{
    Moment{.slot = matrix, .dtype = DType::fp32, .of = Of::projected_in_16_bits},
    Moment{.slot = u, .dtype = DType::fp32, .of = Of::projected},
    Moment{.slot = vh, .dtype = DType::fp32, .extent = Extent::square, .of = Of::projected},
    Moment{.slot = s, .dtype = DType::fp32, .extent = Extent::lesser, .of = Of::projected},
    Moment{.slot = copy, .dtype = DType::fp32, .of = Of::projected},
    Moment{.does = Does::let_go, .slot = copy},
    Moment{.slot = copy, .dtype = DType::fp32, .extent = Extent::rank_square, .of = Of::projected},
    Moment{.slot = a, .dtype = DType::fp32, .extent = Extent::low_rank, .of = Of::projected},
    Moment{.does = Does::let_go, .slot = copy},
    Moment{.slot = copy, .extent = Extent::projector, .of = Of::projected_in_16_bits}};
inline constexpr std::array kDecomposed{
    Moment{.does = Does::let_go, .slot = matrix}, Moment{.does = Does::let_go, .slot = u},
    Moment{.does = Does::let_go, .slot = vh},     Moment{.does = Does::let_go, .slot = s},
    Moment{.does = Does::let_go, .slot = a},      Moment{.does = Does::let_go, .slot = copy}};

template <std::size_t... N>
constexpr auto joined(const std::array<Moment, N>&... parts) {
  std::array<Moment, (N + ...)> out{};
  std::size_t at = 0;
  const auto append = [&](const auto& part) {
    for (const Moment& moment : part) out[at++] = moment;
  };
  (append(parts), ...);
  return out;
}

inline constexpr std::array kProjection = joined(kDecomposition, kDecomposed);

// adamw.py, AdamW.step: Python's names keep what the parameter before made.
inline constexpr std::array kGaLoreMoments = joined(
    std::array{Moment{.does = Does::let_go, .slot = grad}}, kProjection,
    std::array{
        Moment{.slot = grad, .extent = Extent::low_rank, .of = Of::projected},
        Moment{.slot = denom, .extent = Extent::low_rank, .of = Of::projected},
        Moment{.slot = denom, .of = Of::whole},
        Moment{.slot = norm_grad, .extent = Extent::low_rank, .of = Of::projected},
        Moment{.slot = norm_grad, .of = Of::whole}, Moment{.slot = full, .of = Of::projected},
        Moment{.slot = matrix, .of = Of::projected}, Moment{.does = Does::let_go, .slot = full},
        Moment{.does = Does::pass_on, .slot = norm_grad, .from = matrix}});

// adamw8bit.py, AdamW8bit.step: the weight is cloned, and for the step is the update; the gradient
// gives way to the projected one until zero_grad.
inline constexpr std::array kGaLore8bitMoments = joined(
    kProjection,
    std::array{
        Moment{.does = Does::keep, .extent = Extent::low_rank, .of = Of::projected},
        Moment{.slot = matrix, .of = Of::projected},  // the clone; the old weight goes
        Moment{.slot = u, .extent = Extent::low_rank, .of = Of::projected},
        Moment{.does = Does::let_go, .slot = matrix},
        Moment{.does = Does::give, .of = Of::projected}, Moment{.slot = full, .of = Of::projected},
        Moment{.slot = matrix, .of = Of::projected}, Moment{.does = Does::let_go, .slot = full},
        Moment{.does = Does::let_go, .slot = u}, Moment{.does = Does::let_go, .slot = matrix}});

inline constexpr TorchOptimizer kGaLore{
    .refusal_zero1 = "GaLore inside ZeroRedundancyOptimizer is not modelled yet",
    .refusal_fsdp1 = "GaLore projects whole matrices; FSDP1's parts are vectors",
    .refusal_fsdp2 = "GaLore projects whole matrices, and FSDP2's are sharded",
    .package = "galore_torch",
    .moments = kGaLoreMoments,
    .assumption = "every matrix of a layer is projected, in the step that makes the bases anew",
    .source = "galore_torch 1.0 (galore_projector.py); PyTorch 2.11, linalg_svd",
    .projects_to = 128,  // Transformers' own (trainer_optimizer.py, _get_galore_optimizer)
    .factors = true};

// bitsandbytes 0.50.2 reads what galore_torch passes as percentile_clipping as max_unorm, which
// makes a value of fp32 for each parameter (init_state); embeddings are in 8 bits too.
inline constexpr TorchOptimizer kGaLore8bit = [] {
  TorchOptimizer out = kGaLore;
  out.moments = kGaLore8bitMoments;
  out.state_dtype = DType::fp32;
  out.blocks = {
      .block = 256, .least = 4096, .tables = std::int64_t{2} * 256 * 4, .embeddings = true};
  out.value_of_each = "unorm_vec";
  return out;
}();

// Beside AdamW's passes two GEMMs with the basis; the SVD, every 200 steps, is left out.
inline constexpr OptimizerRule kGaLoreAdamW{.kind = Optimizer::galore,
                                            .name = "galore",
                                            .states = kGaLoreStates,
                                            .unfused = {.values = 12, .passes = 12},
                                            .in_runtime = true,
                                            .torch = kGaLore};
inline constexpr OptimizerRule kGaLoreAdamW8bit{.kind = Optimizer::galore8bit,
                                                .name = "galore8bit",
                                                .states = kGaLoreStates,
                                                .unfused = {.values = 10, .passes = 10},
                                                .torch = kGaLore8bit};

}  // namespace plimsoll::models::optimizer_rows
