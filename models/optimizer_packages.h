// What rows of models/optimizers.h share: how other packages step, and PyTorch's own loops.
#pragma once

#include "models/optimizer_rule.h"

namespace plimsoll::models::optimizer_rows {

using Does = Moment::Does;
using enum OptimizerState;
inline constexpr std::array kAdam{StateTensor{exp_avg}, StateTensor{exp_avg_sq}};
inline constexpr std::array kMomentum{StateTensor{momentum_buffer}};
inline constexpr std::array kLion{StateTensor{exp_avg}};
inline constexpr std::array kSquareAvg{StateTensor{square_avg}};
inline constexpr std::array kAdEMAMix{StateTensor{exp_avg, 2}, StateTensor{exp_avg_sq}};
inline constexpr std::array kFactored{
    StateTensor{.name = exp_avg_sq_row, .extent = Extent::rows, .of = Of::matrices},
    StateTensor{.name = exp_avg_sq_col, .extent = Extent::columns, .of = Of::matrices},
    StateTensor{.name = exp_avg_sq, .of = Of::vectors}};
inline constexpr std::array<const char*, 4> kAdamSettings{"lr", "betas", "eps", "weight_decay"};
inline constexpr std::array<const char*, 2> kSgdSettings{"lr", "weight_decay"};
inline constexpr const char* kLionBeta = "adam_beta2=0.99";  // arXiv 2302.06675

// torch/optim/adam.py (2.11), _single_tensor_adam: denom = (exp_avg_sq.sqrt() / ...).add_(eps).
inline constexpr std::array kAdamMoments{Moment{.slot = 0}, Moment{.slot = 1},
                                         Moment{.does = Does::let_go, .slot = 0}};

// transformers 5.17, optimization.py, Adafactor.step without beta1, as its Trainer makes it. Slots:
// grad, p_data_fp32, update, a nameless value, r_factor, c_factor. state["RMS"] is a tensor.
inline constexpr std::array kAdafactorMoments{
    Moment{.does = Does::let_go, .slot = 0},
    Moment{.slot = 0, .dtype = DType::fp32, .of = Of::in_16_bits},
    Moment{.does = Does::let_go, .slot = 1},
    Moment{.slot = 1, .dtype = DType::fp32, .of = Of::in_16_bits},
    Moment{.slot = 3, .dtype = DType::fp32},  // grad ** 2
    Moment{.slot = 2, .dtype = DType::fp32},
    Moment{.slot = 3, .dtype = DType::fp32, .extent = Extent::rows, .of = Of::matrices},
    Moment{.does = Does::let_go, .slot = 3},
    Moment{.slot = 3, .dtype = DType::fp32, .extent = Extent::columns, .of = Of::matrices},
    Moment{.does = Does::sum_rows, .of = Of::matrices},  // update.mean(dim=-2)
    Moment{.does = Does::let_go, .slot = 3},
    Moment{.slot = 4, .dtype = DType::fp32, .extent = Extent::rows, .of = Of::matrices},
    Moment{.slot = 5, .dtype = DType::fp32, .extent = Extent::columns, .of = Of::matrices},
    Moment{.slot = 2, .dtype = DType::fp32},
    Moment{.does = Does::let_go, .slot = 4},
    Moment{.does = Does::let_go, .slot = 5},
    Moment{.slot = 3, .dtype = DType::fp32},  // -update
    Moment{.does = Does::let_go, .slot = 3},
};

inline constexpr TorchOptimizer kAdafactor{
    .refusal_zero1 = "Adafactor inside ZeroRedundancyOptimizer is not verified",
    .refusal_fsdp1 =
        "Adafactor on FSDP1's flat parameters, where every matrix is a "
        "vector, is not modelled yet",
    .refusal_fsdp2 =
        "Transformers' Adafactor steps no DTensor (\"aten.add_.Tensor "
        "got mixed torch.Tensor and DTensor\")",
    .package = "transformers.optimization.Adafactor",
    .moments = kAdafactorMoments,
    .state_dtype = DType::fp32,
    .assumption = "scale_parameter=False, relative_step=False, without beta1",
    .source = "transformers 5.17, trainer_optimizer.py, _get_adafactor",
    .in_backward = false,
    .value_of_each = "RMS"};

// torch/optim/_muon.py (2.11), _single_tensor_muon: `update`, and the locals of
// _zeropower_via_newtonschulz: ortho_grad (bf16: a copy where the gradient is in another dtype),
// gram_matrix, gram_update. Five iterations; from the second on each finds what the one before
// made.
inline constexpr std::array kMuonMoments{
    Moment{.slot = 0},
    Moment{.slot = 1, .dtype = DType::bf16, .of = Of::in_fp32},
    Moment{.slot = 2, .dtype = DType::bf16, .extent = Extent::square},
    Moment{.slot = 3, .dtype = DType::bf16, .extent = Extent::square},
    Moment{.slot = 1, .dtype = DType::bf16},
    Moment{.slot = 2, .dtype = DType::bf16, .extent = Extent::square},
    Moment{.slot = 3, .dtype = DType::bf16, .extent = Extent::square},
    Moment{.slot = 1, .dtype = DType::bf16},
    Moment{.does = Does::let_go, .slot = 2},
    Moment{.does = Does::let_go, .slot = 3},
    Moment{.does = Does::pass_on, .slot = 0, .from = 1},
};

inline constexpr TorchOptimizer kMuon{
    .refusal_zero1 = "Muon inside ZeroRedundancyOptimizer is not modelled yet",
    .refusal_fsdp1 = "torch.optim.Muon takes matrices; FSDP1's parts are vectors",
    .refusal_fsdp2 = "what torch.optim.Muon gathers of DTensors is not modelled yet",
    .package = "torch.optim.Muon",
    .moments = kMuonMoments,
    .assumption = "Muon for the matrices of layers, AdamW (foreach) for the rest",
    .source = "torch 2.11, optim/_muon.py and its documentation",
    .in_backward = false};

// bitsandbytes 0.50.2, optim/optimizer.py: states in fp32 or in blocks of 256 values with a scale
// each (init_state), below 4,096 elements fp32 (min_8bit_size); a map of 256 fp32 values for each
// state. Paged from 100,000 elements on (get_state_buffer), the scales never. Its kernels step in
// place: p is read and written, g read, each state read and written. Transformers' Trainer keeps
// the states of every nn.Embedding in 32 bits (trainer.py, create_optimizer).
constexpr OptimizerRule bitsandbytes(Optimizer kind, std::string_view name,
                                     std::span<const StateTensor> states, int bits, bool paged,
                                     TrainerOptimizer trainer) {
  OptimizerRule out{.kind = kind, .name = name, .states = states, .trainer = trainer};
  out.torch = {.refusal_zero1 = "ZeroRedundancyOptimizer around bitsandbytes is not verified",
               .refusal_fsdp2 =
                   "bitsandbytes 0.50.2 steps no DTensor (\"Operator bitsandbytes."
                   "optimizer_update_32bit.default does not have a sharding strategy "
                   "registered\"); --fsdp-version 1 runs",
               .package = "bitsandbytes",
               .state_dtype = DType::fp32,
               .paged_from = paged ? 100'000 : 0};
  // The Trainer makes it, and the engine has it step what it has flattened.
  out.deepspeed = {};
  if (bits == 8) {
    out.torch.blocks = {.block = 256,
                        .least = 4096,
                        .tables = static_cast<std::int64_t>(states.size()) * 256 * 4,
                        .block_before = 2048};
    out.torch.assumption = "blocks of 256; fp32 for embeddings and below 4,096 elements";
    out.torch.source =
        "bitsandbytes 0.50.2, optim/optimizer.py; transformers 5.17, trainer.py, create_optimizer "
        "(without the Trainer embeddings have 8 bits too)";
  }
  return out;
}

constexpr OptimizerRule rmsprop_of_bitsandbytes(Optimizer kind, std::string_view name, int bits,
                                                TrainerOptimizer trainer) {
  OptimizerRule out = bitsandbytes(kind, name, kSquareAvg, bits, false, trainer);
  out.torch.refusal_bf16 =
      "bitsandbytes 0.50.2 has no RMSprop of them (\"Gradient+optimizer bit data type combination "
      "not supported\")";
  return out;
}
inline constexpr OptimizerRule kRmspropBnb =
    rmsprop_of_bitsandbytes(Optimizer::rmsprop_bnb, "rmsprop-bnb", 32, {.name = "rmsprop_bnb"});
inline constexpr OptimizerRule kRmsprop8bit =
    rmsprop_of_bitsandbytes(Optimizer::rmsprop8bit, "rmsprop8bit", 8, {.name = "rmsprop_bnb_8bit"});

// Our own runtime has it too: one kernel, which moves what bitsandbytes' moves.
constexpr OptimizerRule in_runtime(OptimizerRule rule, float beta2 = 0.999f) {
  rule.in_runtime = true;
  rule.beta2 = beta2;
  return rule;
}

}  // namespace plimsoll::models::optimizer_rows
