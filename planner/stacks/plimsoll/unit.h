// What is handled together of the parameters: the embedding, a layer, the tail.
#pragma once

#include <vector>

#include "models/decisions/low_rank.h"
#include "models/decisions/unit_names.h"
#include "models/step_program.h"
#include "planner/model_parts.h"

namespace plimsoll::planner::plimsoll_stack {

// A unit of parameters (models/decisions/sharding.h): its bytes on this rank, and what is live of
// it in the micro-batch that is being written.
struct Unit {
  const std::vector<Parameter>* parameters = nullptr;
  const models::decisions::UnitNames* names = nullptr;
  models::GroupId group = models::kNoGroup;
  bool repeats_unit = false;  // equal to the one before it in its checkpoint
  std::int64_t trained = 0, adapters = 0;  // elements of the trained parts, padded
  Bytes packed;  // the part of packed weights, padded
  Bytes whole, whole_gradients;
  // What this rank keeps. `moment`: of each of the optimizer's states; `scales`: of one in 8 bits.
  Bytes stored, gradients, masters, moment, scales, projector;
  // What is stepped in a subspace, of an optimizer that does so.
  std::vector<models::decisions::LowRank> projected;
  Bytes read_for_norm, stepped;  // what the optimizer's kernels move on this rank
  Bytes stepped_weights, stepped_gradients;  // of what this rank's optimizer steps

  models::TensorId gathered_forward = models::kNoTensor, gathered_again = models::kNoTensor,
                   gathered_backward = models::kNoTensor;
  // Whole gradients that this micro-batch's backward writes.
  models::TensorId written = models::kNoTensor;
  models::TensorId kept = models::kNoTensor;  // gradients that the optimizer reads
  models::TensorId compressed = models::kNoTensor;  // of `written`, where that is exchanged
  bool trains() const { return trained + adapters > 0; }
};

// Matrices of a layer that are stepped in `rank` dimensions (models/decisions/low_rank.h); 0: none.
std::vector<models::decisions::LowRank> projected(const std::vector<Parameter>& parameters,
                                                  std::int64_t rank);

}  // namespace plimsoll::planner::plimsoll_stack
