// What torchao's AdamW with few bits keeps and makes, for rows of models/optimizers.h.
#pragma once

#include "models/optimizer_packages.h"

namespace plimsoll::models::optimizer_rows {

// torchao 0.18, optim/adam.py: each parameter's step is one compiled graph (single_param_adam).
// Inductor of PyTorch 2.11 makes each state's new scales in a kernel that reduces each block, and
// between that and the one that writes the codes stands the state in fp32, or the codes: of 4 bits
// the search's indices in int64, too; of fp8 the codes where a row is no whole number of blocks
// apart. Of what is not in blocks: nothing.
inline constexpr std::array kInt8Moments{
    Moment{.slot = 0, .dtype = DType::fp32, .extent = Extent::blocks, .of = Of::in_blocks},
    Moment{.slot = 1, .dtype = DType::fp32, .extent = Extent::blocks, .of = Of::in_blocks},
    Moment{.slot = 2, .dtype = DType::fp32, .of = Of::in_blocks},
    Moment{.slot = 3, .dtype = DType::fp32, .of = Of::in_blocks},
    Moment{.does = Does::let_go, .slot = 2},
    Moment{.does = Does::let_go, .slot = 3},
    Moment{.does = Does::let_go, .slot = 0},
    Moment{.does = Does::let_go, .slot = 1}};
inline constexpr std::array kInt4Moments{
    Moment{.slot = 0, .dtype = DType::fp32, .extent = Extent::blocks, .of = Of::in_blocks},
    Moment{.slot = 1, .dtype = DType::fp32, .extent = Extent::blocks, .of = Of::in_blocks},
    Moment{.slot = 2, .dtype = DType::fp32, .of = Of::in_blocks},
    Moment{.slot = 3, .dtype = DType::fp32, .of = Of::in_blocks},
    Moment{.slot = 4, .dtype = DType::int64, .of = Of::in_blocks},
    Moment{.slot = 5, .dtype = DType::int64, .of = Of::in_blocks},
    Moment{.does = Does::let_go, .slot = 2},
    Moment{.does = Does::let_go, .slot = 4},
    Moment{.does = Does::let_go, .slot = 0},
    Moment{.does = Does::let_go, .slot = 3},
    Moment{.does = Does::let_go, .slot = 5},
    Moment{.does = Does::let_go, .slot = 1}};
inline constexpr std::array kFp8Moments{
    Moment{.slot = 0, .dtype = DType::fp32, .extent = Extent::blocks, .of = Of::in_blocks},
    Moment{.slot = 1, .dtype = DType::fp32, .extent = Extent::blocks, .of = Of::in_blocks},
    Moment{.slot = 2, .dtype = DType::fp8_e4m3, .of = Of::in_rows_of_blocks},
    Moment{.slot = 3, .dtype = DType::fp8_e4m3, .of = Of::in_rows_of_blocks},
    Moment{.does = Does::let_go, .slot = 2},
    Moment{.does = Does::let_go, .slot = 0},
    Moment{.does = Does::let_go, .slot = 3},
    Moment{.does = Does::let_go, .slot = 1}};

// _new_buffer: in blocks from 4,096 elements on where these are whole blocks, embeddings and heads
// too, else as the parameter is. Each state has a map of its own, of 2 to the power of its bits in
// fp32; fp8 needs none. Values: the gradient, the parameter twice, what stands between.
constexpr OptimizerRule torchao(Optimizer kind, std::string_view name, DType codes,
                                std::int64_t map, double values, std::span<const Moment> moments,
                                TrainerOptimizer trainer) {
  OptimizerRule out{.kind = kind,
                    .name = name,
                    .states = kAdam,
                    .unfused = {.values = values, .passes = 4},
                    .trainer = trainer};
  out.torch = {
      .refusal_zero1 = "ZeroRedundancyOptimizer around torchao's AdamW is not verified",
      .refusal_fsdp1 = "torchao's AdamW on FSDP1's flat parameters is not verified",
      .package = "torchao",
      .moments = moments,
      .blocks = {.block = 256,
                 .least = 4096,
                 .embeddings = true,
                 .codes = codes,
                 .whole = true,
                 .table_of_each = map},
      .assumption = "blocks of 256; the step compiled, as Inductor of PyTorch 2.11 writes it",
      .source =
          "torchao 0.18, optim/adam.py; transformers 5.17, trainer_optimizer.py (torchao's "
          "own blocks of 4 bits have 128); Inductor on a dry device, no GPU has measured it"};
  return out;
}

inline constexpr OptimizerRule kTorchaoAdam8bit =
    torchao(Optimizer::torchao_adam8bit, "torchao-adam8bit", DType::uint8, 1024, 9, kInt8Moments,
            {.name = "adamw_torch_8bit"});
inline constexpr OptimizerRule kTorchaoAdam4bit =
    torchao(Optimizer::torchao_adam4bit, "torchao-adam4bit", DType::int4, 64, 16, kInt4Moments,
            {.name = "adamw_torch_4bit"});
inline constexpr OptimizerRule kTorchaoAdamFp8 =
    torchao(Optimizer::torchao_adamfp8, "torchao-adamfp8", DType::fp8_e4m3, 0, 6, kFp8Moments, {});

}  // namespace plimsoll::models::optimizer_rows
