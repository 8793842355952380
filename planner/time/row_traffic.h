// Bytes that row-wise operations move through the GPU's memory for one token.
#pragma once

#include "planner/time/compute_cost.h"

namespace plimsoll::planner {

struct RowTraffic {
  double forward = 0, backward = 0;  // bytes for a token
};

RowTraffic layer_traffic(const LayerCost& layer, const Execution& execution);

// Of LoRA's products beside one linear module, beyond the products themselves.
RowTraffic adapter_traffic(const ProductShape& product, const Execution& execution);

// The loss, for a token's row of logits.
RowTraffic loss_traffic(double vocab, const Execution& execution);

// Kernels that the host launches for a layer's forward pass.
double layer_kernels(const LayerCost& layer, const Execution& execution);

}  // namespace plimsoll::planner
