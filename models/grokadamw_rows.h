// What GrokAdamW (grokadamw 0.1.2) keeps and makes, for a row of models/optimizers.h.
#pragma once

#include "models/optimizer_packages.h"

namespace plimsoll::models::optimizer_rows {

inline constexpr std::array kGrokStates{StateTensor{exp_avg}, StateTensor{exp_avg_sq},
                                        StateTensor{grok_ema}};

// grokadamw.py, _update_group's loop. Slots: exp_avg, exp_avg_sq, grok_ema, grok_grad; values
// without a name yet. A step copies the states to the GPU, the first two before either has its
// name, and back when it is done with a parameter.
inline constexpr std::array kGrokMoments{Moment{.slot = 4},
                                         Moment{.slot = 5},
                                         Moment{.does = Does::pass_on, .slot = 0, .from = 4},
                                         Moment{.does = Does::pass_on, .slot = 1, .from = 5},
                                         Moment{.slot = 2},
                                         Moment{.slot = 4},  // lamb * grok_ema
                                         Moment{.slot = 3},
                                         Moment{.does = Does::let_go, .slot = 4},
                                         Moment{.slot = 4},  // exp_avg_sq.sqrt()
                                         Moment{.does = Does::let_go, .slot = 4}};

inline constexpr TorchOptimizer kGrokStep{
    .refusal_zero1 = "GrokAdamW inside ZeroRedundancyOptimizer is not modelled yet",
    .refusal_fsdp1 = "GrokAdamW on FSDP1's flat parameters is not modelled yet",
    .refusal_fsdp2 = "what GrokAdamW copies of DTensors is not modelled yet",
    .package = "grokadamw",
    .moments = kGrokMoments,
    .assumption =
        "in the host's memory, pageable; copies to the GPU and back take time that is "
        "not planned",
    .source = "grokadamw 0.1.2, grokadamw.py, _update_group",
    .in_backward = false,
    .on_host = true};

// Clipping 3, grok_ema * 2, + 3, lamb * 2, g + 3, m * 2, + 3, v * 2, addcmul 3, p * 2, sqrt 2, + 2,
// addcdiv 4.
inline constexpr OptimizerRule kGrokAdamW{.kind = Optimizer::grokadamw,
                                          .name = "grokadamw",
                                          .states = kGrokStates,
                                          .unfused = {.values = 33, .passes = 14},
                                          .torch = kGrokStep,
                                          .trainer = {.name = "grokadamw"}};

}  // namespace plimsoll::models::optimizer_rows
