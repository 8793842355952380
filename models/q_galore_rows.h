// What Q-GaLore's optimizer (q_galore_torch 1.0, QGaLoreAdamW8bit) keeps and makes, of weights that
// are not in int8.
#pragma once

#include "models/galore_rows.h"

namespace plimsoll::models::optimizer_rows {

// q_galore_projector.py: codes of a byte each, whether quant_n_bit is 4 or 8; a scale and a zero
// point of the gradient's dtype for each group; and the basis' first vector.
inline constexpr std::array kQGaLoreStates{
    StateTensor{.name = projector,
                .extent = Extent::projector,
                .of = Of::projected,
                .plain = true,
                .dtype = DType::uint8},
    StateTensor{.name = projector_scales,
                .extent = Extent::projector_groups,
                .of = Of::projected,
                .plain = true},
    StateTensor{.name = projector_zeros,
                .extent = Extent::projector_groups,
                .of = Of::projected,
                .plain = true},
    StateTensor{
        .name = past_ortho_vector, .extent = Extent::lesser, .of = Of::projected, .plain = true},
    StateTensor{.name = exp_avg, .extent = Extent::low_rank, .of = Of::projected},
    StateTensor{.name = exp_avg_sq, .extent = Extent::low_rank, .of = Of::projected},
    StateTensor{.name = exp_avg, .of = Of::whole},
    StateTensor{.name = exp_avg_sq, .of = Of::whole}};

// Locals of project and _quantize beside GaLore's, which are not alive any more; but `copy`, the
// basis, or in fp32 `vh`, of which the basis is a view.
namespace q_galore_slot {
enum : std::uint8_t { groups, most, least, scales, one = s, zeros = a, two = denom, codes };
static_assert(codes < kMomentSlots);
}  // namespace q_galore_slot

// Values of each group, one name in place of the other.
constexpr Moment of_groups(std::uint8_t slot) {
  return {.slot = slot, .extent = Extent::projector_groups, .of = Of::projected};
}
constexpr Moment of_basis(std::uint8_t slot) {
  return {.slot = slot, .extent = Extent::projector, .of = Of::projected};
}
constexpr Moment let_go(std::uint8_t slot, Of of = Of::all) {
  return {.does = Does::let_go, .slot = slot, .of = of};
}

// The basis' first vector, twice: compared with the one before, and kept.
inline constexpr std::array kPastVector{
    Moment{.slot = q_galore_slot::one, .extent = Extent::lesser, .of = Of::projected},
    let_go(q_galore_slot::one),
    Moment{.slot = q_galore_slot::one, .extent = Extent::lesser, .of = Of::projected},
    let_go(q_galore_slot::one)};

// _quantize: the basis in groups, their extremes, scales and zero points, marks of what is no
// number, and the quotients that become codes. What the states named goes when it returns.
inline constexpr std::array kQuantized{of_basis(q_galore_slot::groups),
                                       of_groups(q_galore_slot::most),
                                       of_groups(q_galore_slot::least),
                                       of_groups(q_galore_slot::one),
                                       of_groups(q_galore_slot::two),
                                       let_go(q_galore_slot::one),
                                       of_groups(q_galore_slot::scales),
                                       let_go(q_galore_slot::two),
                                       of_groups(q_galore_slot::one),
                                       of_groups(q_galore_slot::two),
                                       let_go(q_galore_slot::one),
                                       of_groups(q_galore_slot::zeros),
                                       let_go(q_galore_slot::two),
                                       Moment{.slot = q_galore_slot::one,
                                              .dtype = DType::uint8,
                                              .extent = Extent::projector,
                                              .of = Of::projected},
                                       let_go(q_galore_slot::one),
                                       of_basis(q_galore_slot::one),
                                       of_basis(q_galore_slot::two),
                                       of_basis(q_galore_slot::one),
                                       let_go(q_galore_slot::two),
                                       of_basis(q_galore_slot::two),
                                       let_go(q_galore_slot::one),
                                       Moment{.slot = q_galore_slot::codes,
                                              .dtype = DType::uint8,
                                              .extent = Extent::projector,
                                              .of = Of::projected},
                                       let_go(q_galore_slot::two),
                                       let_go(q_galore_slot::groups),
                                       let_go(q_galore_slot::most),
                                       let_go(q_galore_slot::least),
                                       let_go(q_galore_slot::scales),
                                       let_go(q_galore_slot::zeros),
                                       let_go(q_galore_slot::codes)};

// scales * (codes - zeros), which `one` then names.
inline constexpr std::array kUnquantized{of_basis(q_galore_slot::one), of_basis(q_galore_slot::two),
                                         of_basis(q_galore_slot::one), let_go(q_galore_slot::two)};

// q_galore_adamw8bit.py, step: as galore_torch's.
inline constexpr std::array kQGaLoreMoments = joined(
    kDecomposition,
    std::array{let_go(matrix), let_go(u), let_go(vh, Of::projected_in_16_bits), let_go(s),
               let_go(a)},
    kPastVector, kQuantized, kUnquantized,
    std::array{let_go(copy), let_go(vh),
               Moment{.does = Does::keep, .extent = Extent::low_rank, .of = Of::projected},
               let_go(q_galore_slot::one),
               Moment{.slot = matrix, .of = Of::projected},  // the clone; the old weight goes
               Moment{.slot = u, .extent = Extent::low_rank, .of = Of::projected}, let_go(matrix),
               Moment{.does = Does::give, .of = Of::projected}},
    kUnquantized,
    std::array{Moment{.slot = full, .of = Of::projected},
               Moment{.slot = matrix, .of = Of::projected}, let_go(full),
               let_go(q_galore_slot::one), let_go(u), let_go(matrix)});

inline constexpr TorchOptimizer kQGaLore = [] {
  TorchOptimizer out = kGaLore;
  out.package = "q_galore_torch";
  out.moments = kQGaLoreMoments;
  out.state_dtype = DType::fp32;
  out.blocks = {.block = 256,
                .least = 4096,
                .tables = std::int64_t{2} * 256 * 4,
                .embeddings = true,
                .block_before = 2048};
  out.assumption =
      "every matrix of a layer is projected, in the step that makes the bases anew, which are held "
      "in bytes with groups of 256 (quant, quant_group_size)";
  out.source = "q_galore_torch 1.0 (q_galore_projector.py); PyTorch 2.4, linalg_svd";
  return out;
}();

// GaLore's passes: those over a basis and its codes are of rank r.
inline constexpr OptimizerRule kQGaLoreAdamW8bit{.kind = Optimizer::q_galore,
                                                 .name = "q-galore",
                                                 .states = kQGaLoreStates,
                                                 .unfused = {.values = 10, .passes = 30},
                                                 .torch = kQGaLore};

}  // namespace plimsoll::models::optimizer_rows
