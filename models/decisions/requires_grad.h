// Which of a layer's gradients backward computes, and what forward leaves to it: derived from the
// layer's ops, forward, as autograd does it.
//
// A value requires a gradient where one of the values that it is made of does, or where a parameter
// of its op is trained. An op saves what its own backward reads: models/decisions/layer.h.
#pragma once

#include <span>

#include "models/decisions/layer.h"
#include "models/decisions/layer_ops.h"

namespace plimsoll::models::decisions {

// What of a module's parameters is trained.
struct Trained {
  bool weight = false, bias = false;
  bool adapter = false;  // both of its matrices
  bool down = false;  // experts': `weight` is that of gate and up

  bool any() const { return weight || bias || adapter || down; }
  bool reads_input() const { return weight || adapter; }
  bool operator==(const Trained&) const = default;
};

struct RequiresGrad {
  ValueSet values;
  ValueSet saved;  // what backward reads, as forward leaves it
  ValueSet again;  // what backward reads, and makes again
  // Ops that leave something besides: a norm's statistics, attention's log-sum-exp or
  // probabilities.
  LayerOpSet beside;
  std::int8_t last = -1;  // the last op that leaves anything; -1: none does

  bool any(const LayerOps& layer) const { return value(layer.output); }
  bool value(ValueId id) const { return id != kNoValue && values[static_cast<std::size_t>(id)]; }
  bool saves(ValueId id) const { return id != kNoValue && saved[static_cast<std::size_t>(id)]; }
  bool makes_again(ValueId id) const { return again[static_cast<std::size_t>(id)]; }
  bool operator==(const RequiresGrad&) const = default;
};

// What the backward of a mixture's experts computes inside of the op.
struct ExpertsGradients {
  bool product = false;  // of what the gate makes: gate and up are saved; else that itself
  bool gate_up = false;  // of gate and up
};
ExpertsGradients experts_gradients(const RequiresGrad& r, const LayerOp& op,
                                   const Trained& trained);

// `trained`: of LayerOps::modules. `input`: something below the layer is trained.
RequiresGrad requires_grad(const LayerOps& layer, std::span<const Trained> trained, bool input,
                           Keeps keeps, Attention attention);

}  // namespace plimsoll::models::decisions
