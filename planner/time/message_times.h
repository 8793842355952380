// Seconds of a step's messages by where they stand in a micro-batch, and what copies to and from
// them ask of the GPU, and they of the host.
#pragma once

#include <vector>

#include "planner/program/messages.h"
#include "planner/time/collective_cost.h"
#include "planner/time/compute_cost.h"

namespace plimsoll::planner {

// Before or behind one pass over a layer: of one of its kind, in the mean.
struct PassMessages {
  double count = 0;
  double beside = 0;  // seconds of those that the neighbour's pass runs beside
  double alone = 0;  // and of those that nothing runs beside
  Cost copies;
};

struct LayerMessages {
  PassMessages forward, backward, reduction;
};

struct MicroBatchMessages {
  std::vector<LayerMessages> layers;  // each layer of each run's pattern, in the model's order
  double alone = 0;  // of the ends: nothing runs beside
  double tail = 0;  // beside the last layer's forward
  double late = 0;  // beside whatever of the backward has nothing else beside it
  Cost copies;  // of the ends
};

struct MessageTimes {
  MicroBatchMessages each;  // what every micro-batch sends
  MicroBatchMessages once;  // that, and what only the first or the last one sends
  double step = 0;  // after the optimizer's step
  bool crosses_nodes = false;
};

// `copies`: how many layers there are of each kind. `node`: ranks of a node. `memory`: bytes/s of
// the GPU's. `host`: seconds of the host's for each message.
MessageTimes times_of(const Messages& messages, const std::vector<double>& copies,
                      const Fabric& fabric, std::int64_t node, double memory, double host = 0);

}  // namespace plimsoll::planner
