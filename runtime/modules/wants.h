// Which gradients of a layer are wanted: those of trained parameters, and of every value on the way
// down to one. Nothing else is computed, and what only it would read is not saved.
#pragma once

#include "runtime/parameter.h"

namespace plimsoll::runtime {

struct LinearWants {
  bool weight = false, bias = false, lora_a = false, lora_b = false;
  bool input = false;

  bool parameters() const { return weight || bias || lora_a || lora_b; }
  bool any() const { return parameters() || input; }  // the output's gradient
  bool reads_input() const { return weight || lora_a; }
  bool operator==(const LinearWants&) const = default;
};

struct NormWants {
  bool weight = false, bias = false;
  bool input = false;

  bool parameters() const { return weight || bias; }
  bool any() const { return parameters() || input; }
  bool operator==(const NormWants&) const = default;
};

// Without anything wanted a layer saves nothing: the forward of a layer that is made again later,
// or of one with nothing trained in or below it.
struct Wants {
  LinearWants q, k, v, o, gate, up, down;
  NormWants input_norm, post_norm, q_norm, k_norm;
  bool attention = false;  // dq, dk and dv
  bool activation = false;  // the gradients of gate and up
  bool between = false;  // of the stream between attention and MLP
  bool below = false;  // of the stream that the layer reads

  bool any() const { return down.any(); }
  // Backward reads something that forward makes: a layer that is made again keeps its input.
  bool saves() const { return activation || down.reads_input() || down.lora_b; }
  // Backward reads the layer's input: the caller keeps it.
  bool reads_input() const { return input_norm.any(); }
  // The norms' outputs.
  bool reads_normalized() const { return q.reads_input() || k.reads_input() || v.reads_input(); }
  bool reads_post_normalized() const { return gate.reads_input() || up.reads_input(); }
  bool operator==(const Wants&) const = default;
};

// `below`: something below the layer is trained.
Wants wants_of(const LayerParameters& parameters, bool below);

}  // namespace plimsoll::runtime
