// What one of the ranks among which tensor parallelism divides a model has of it.
//
// Linears that make heads or the MLP's inner axis keep rows of their weight, those that read these
// keep columns, the token table and the head keep rows of the vocabulary, norms are whole
// (torch.distributed.tensor.parallel: ColwiseParallel, RowwiseParallel, SequenceParallel; M.
// Shoeybi et al., "Megatron-LM", arXiv 1909.08053, section 3).
#pragma once

#include "models/model_spec.h"
#include "models/run_spec.h"

namespace plimsoll::models {

// Among `strategy.tp` ranks: parameters, decoder and layers of the forward of `strategy.code` as a
// rank has them; all equal. Error{bad_input}: heads that do not divide, as PyTorch would stop at;
// Error{unsupported}: code that no one divides so, or axes whose parts are not equal.
ModelSpec divided(const ModelSpec& model, const Strategy& strategy);

}  // namespace plimsoll::models
