// Cosines and sines of the positions, made once.
#pragma once

#include "runtime/modules/layer_module.h"

namespace plimsoll::runtime {

class RotaryTables {
 public:
  RotaryTables() = default;
  // Of the worker's length, behind no prefix. Empty where the model does not rotate.
  RotaryTables(Worker& worker, const ModelSettings& settings);

  // fp32 [2, length, rotated / 2]: layers whose attention slides may have a table of their own.
  ConstTensorView of(const LayerOps& layer) const;

 private:
  Tensor table_, local_;
};

}  // namespace plimsoll::runtime
