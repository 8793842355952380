// Model FLOPs of one optimizer step: the project's convention, by which planned and measured MFU
// are both defined.
//
// Per token: 6 for every weight in a GEMM (2 forward, 2 for the input's gradient, 2 for
// its own; the input embedding does not count, the head does, also when tied; of routed experts
// those that a token visits), 4 where it is frozen, plus attention 3·L·a·(d_qk + d_v)·s_eff, the
// causal half counted once (s_eff = s, or the window). Chowdhery et al., PaLM, arXiv 2204.02311,
// appendix B, with causality.
//
// By the parameter table, and not read from a program that computes them: MFU compares runs that
// compute one model differently. A kernel's whole tiles along the diagonal, the masked half of
// scores that eager attention multiplies, adapters' norms (DoRA) and gradients that nothing asks
// for, of frozen layers below the first trained one, must not move it; what a program really
// multiplies are its hardware FLOPs (planner/time/hardware_flops.h, and counted by a profiled run).
// tests/planner/flops_test.cpp holds one against the other.
#pragma once

#include "models/model_spec.h"
#include "models/run_spec.h"

namespace plimsoll::models {

// Elements of the weights that one token is multiplied with.
struct GemmWeights {
  double trained = 0, frozen = 0, adapters = 0;
  bool operator==(const GemmWeights&) const = default;
};
struct GemmsOfToken {
  GemmWeights layers, head;
  bool operator==(const GemmsOfToken&) const = default;
};

// By the parameter table. Error{bad_input}: patterns and LoRA targets that match nothing.
GemmsOfToken gemms_of_token(const ModelSpec& model, const Strategy& strategy);

struct StepFlops {
  double model = 0;  // the whole job's, one optimizer step
  double attention = 0;  // of `model`, the causal scores' part
  // PaLM's own count: attention as if every token saw all others.
  double model_full_attention() const { return model + attention; }
};

// Of a model whose step is planned (ModelSpec::decoder).
StepFlops step_flops(const ModelSpec& model, const Strategy& strategy, const Batch& batch);

}  // namespace plimsoll::models
