// Token and position tables.
#pragma once

#include "runtime/modules/settings.h"
#include "runtime/parameter.h"
#include "runtime/worker.h"

namespace plimsoll::runtime {

struct EmbeddingParameters {
  Parameter tokens;  // [V, h]; tied to the head: the tail's parameter
  Parameter positions;  // [P, h], or none
};

// Ops stand behind the worker's prefix, which is empty here.
class Embedding {
 public:
  Embedding(Worker& worker, const ModelSettings& settings, const EmbeddingParameters& parameters);

  bool trains() const { return parameters_.tokens.trains() || parameters_.positions.trains(); }
  // [T, h]. ids int32 [T].
  Tensor forward(ConstTensorView ids);
  // Masks `d` in place as the forward dropped and adds it to the gradients of both tables; it dies.
  void backward(ConstTensorView ids, Tensor d);
  // The largest scratch that one of its ops needs.
  Bytes workspace() const;

 private:
  kernels::Dropout dropout() const;
  float scale() const;
  template <class View>
  View from_first_position(View table) const;

  Worker& worker_;
  const ModelSettings& settings_;
  EmbeddingParameters parameters_;
};

}  // namespace plimsoll::runtime
