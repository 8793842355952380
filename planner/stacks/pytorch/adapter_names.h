// Names of what adapters and packed bases make around a linear, beside LoRA's and bitsandbytes' own
// (names.h).
#pragma once

#include "planner/stacks/pytorch/names.h"

namespace plimsoll::planner::pytorch {

// DoRA's: the identity that A and B multiply, their GEMM, the weight, the norm of each row.
struct DoraNames {
  ModuleNames magnitude, again;  // again: the base's GEMM of what dropout left
  const char *eye, *eye_cast, *eye_a, *gemm, *gemm_cast, *scaled;
  const char *weight, *weight_cast, *weight_sum, *norm, *norm_cast, *scale, *leave, *base_grad,
      *both_grad, *scale_grad;
};

// IA3's: the vector, its copy, and what is scaled in the vector's dtype.
struct Ia3Names {
  ModuleNames vector;
  const char *copy, *value, *value_grad;
};

// VeRA's: its GEMMs with the shared matrices, and its vectors.
struct VeraNames {
  ModuleNames a, b, lambda_b, lambda_d;
  const char *returned, *returned_grad;  // in the input's dtype
};

// torchao's: the GEMM's result before each column is scaled, that one's gradient, and as it is
// scaled, where the input has another dtype.
struct TorchaoNames {
  const char *unscaled, *unscaled_grad, *scaled, *viewed_grad, *sum_grad;
};

// Of the linear's name, interned (models/block.h).
const DoraNames& dora_names(const char* name);
const Ia3Names& ia3_names(const char* name);
const VeraNames& vera_names(const char* name);
const TorchaoNames& torchao_names(const char* name);

}  // namespace plimsoll::planner::pytorch
