// A layer of our own runtime as the planner knows it: its ops, what of it is trained, and what its
// forward leaves.
#pragma once

#include <array>

#include "models/decisions/requires_grad.h"
#include "models/run_spec.h"
#include "models/step_program.h"
#include "planner/model_parts.h"
#include "planner/program/symbolic_bytes.h"

namespace plimsoll::planner::plimsoll_stack {

using models::Category;
using models::kNoTensor;
using models::Phase;
using models::TensorId;
using models::ValueId;
using models::decisions::GemmOp;
using models::decisions::LayerOp;
using models::decisions::LayerOps;
using models::decisions::LinearNames;
using models::decisions::NormNames;
using models::decisions::RequiresGrad;

// A tensor, or the neighbouring layer's.
struct Ref {
  TensorId tensor = kNoTensor;
  int delta = 0;
  TensorId beyond = kNoTensor;
};

// Sizes of one micro-batch.
struct Tokens {
  SymInt sequences = 1, length = 1;
  SymInt total() const { return sequences * length; }
};

// A layer of a run's pattern: its ops, what of it is trained, and the gradients that follow.
struct OwnLayer {
  const LayerPart* part = nullptr;
  const LayerOps* ops = nullptr;
  RequiresGrad gradients;

  const LinearPart& linear(std::int16_t module) const {
    return part->linears[ops->modules[static_cast<std::size_t>(module)].place];
  }
  const NormPart& norm(std::int16_t module) const {
    return part->norms[ops->modules[static_cast<std::size_t>(module)].place];
  }
  const ExpertsPart& experts(std::int16_t module) const {
    return part->experts[ops->modules[static_cast<std::size_t>(module)].place];
  }
  bool any() const { return gradients.any(*ops); }
  bool attends_backward() const;
};
// Those of a run's pattern. Error{unsupported}: they compute something that our own runtime does
// not have.
std::vector<OwnLayer> own_layers(const LayerRun& run, const models::Strategy& strategy);

// What a mixture's forward leaves beside values.
struct RoutedTensors {
  TensorId routes = kNoTensor, scores = kNoTensor, gate_up = kNoTensor, product = kNoTensor;
};

// What one layer's forward leaves to its backward.
struct LayerTensors {
  std::array<TensorId, models::decisions::kMostValues> values;
  // A norm's statistics, attention's log-sum-exp or probabilities.
  std::array<TensorId, models::decisions::kMostLayerOps> beside;
  std::array<TensorId, models::decisions::kMostModules> adapters;  // x · A, by module
  RoutedTensors routed;  // of the one mixture that a layer has

  LayerTensors() {
    values.fill(kNoTensor);
    beside.fill(kNoTensor);
    adapters.fill(kNoTensor);
  }
};

}  // namespace plimsoll::planner::plimsoll_stack
