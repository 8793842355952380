// The kernels of a compiled graph, and the buffers between them.
//
// As Inductor lowers one: GEMMs and attention are library calls, whose operands and results are
// buffers; everything else is fused into kernels, whose intermediate values exist in registers
// alone. A kernel stands here for each buffer that it writes. Inductor may join kernels that read
// the same and may order them otherwise for a lower peak (scheduler.py, memory.py); how far that
// is from this, dry runs of the real Inductor say (tests/golden/dry_runs_compiled.json).
#pragma once

#include <vector>

#include "planner/stacks/pytorch/compiled/partition.h"

namespace plimsoll::planner::compiled {

struct Kernel {
  NodeId node = kNoNode;  // the last that it computes
  bool library = false;
  std::vector<NodeId> reads;  // buffers
  std::vector<NodeId> writes;  // several of a library kernel
  // A buffer that nobody reads later, of the same size: what is written takes its place.
  NodeId in_place = kNoNode;
  Bytes unfused;  // what its intermediate values would take, were each a buffer
};

// Who holds a view's or a tuple element's memory.
NodeId buffer_of(const JointGraph& graph, NodeId id);

// Of the nodes marked in `runs`, in the order of the graph, or (`lazily`) each as late as the nodes
// of the backward proper need it, as reordering_to_mimic_autograd_engine puts them. `wanted`:
// what is handed on. `given`: what is there.
std::vector<Kernel> kernels(const JointGraph& graph, const std::vector<bool>& runs,
                            const std::vector<NodeId>& wanted, const std::vector<NodeId>& given,
                            bool lazily);

}  // namespace plimsoll::planner::compiled
