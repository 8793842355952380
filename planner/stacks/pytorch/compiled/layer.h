// A compiled layer: its graph, what its forward leaves to its backward, the kernels of both.
#pragma once

#include "planner/stacks/pytorch/compiled/block_graph.h"
#include "planner/stacks/pytorch/compiled/schedule.h"

namespace plimsoll::planner::compiled {

struct Layer {
  explicit Layer(const RegionQuestion& question);

  Region region;
  std::vector<NodeId> saved;  // buffers, without parameters
  std::vector<Kernel> forward, backward;
  NodeId result = kNoNode, input_gradient = kNoNode;  // buffers
  // By buffer: the weight whose gradient it is; -1: none's.
  std::vector<std::int32_t> weight_of;
};

}  // namespace plimsoll::planner::compiled
