// Which values of a joint graph the compiled forward keeps for the compiled backward.
//
// torch 2.11, torch/_functorch/partitioners.py, min_cut_rematerialization_partition with the
// defaults of torch/_functorch/config.py: a minimum cut between what the forward has to compute and
// what the backward reads, over nodes weighted by bytes; nodes that must not be computed again hang
// on the source, what belongs to the backward on the sink.
#pragma once

#include <vector>

#include "planner/stacks/pytorch/compiled/joint_graph.h"

namespace plimsoll::planner::compiled {

struct Partition {
  std::vector<NodeId> saved;  // in the graph's order; inputs and parameters among them
  std::vector<bool>
      backward;  // by node: it runs in the backward graph (again, or for the first time)
  std::vector<bool> forward;  // by node: it runs in the forward graph
};

Partition partition(const JointGraph& graph);

}  // namespace plimsoll::planner::compiled
