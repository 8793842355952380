// The joint graph of a compiled region: its forward and backward as AOTAutograd traces them
// together, after decomposition, in order.
//
// What torch.compile keeps for the backward is decided on this graph alone (partition.h), by what a
// node is (may it be computed again, does a kernel fuse over it) and by how large its result is.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "models/base/dtype.h"

namespace plimsoll::planner::compiled {

using NodeId = std::int32_t;
inline constexpr NodeId kNoNode = -1;

// torch 2.11, torch/_functorch/partitioners.py, get_default_op_list.
enum class NodeClass : std::uint8_t {
  input,  // a placeholder of the forward: the region's inputs and parameters
  tangent,  // of the backward: gradients of the region's results
  view,  // recomputable, fusible, never saved
  fusible,  // pointwise ops and reductions: recomputable, fusible
  random,  // fusible, never computed again
  concatenate,  // others fuse into it, it fuses into none; never computed again
  opaque,  // GEMMs and library kernels: neither
  tuple,  // the same with several results, which `element` nodes take out
  statistics,  // a recomputable, fusible one
  element,  // operator.getitem
  output,  // of the joint graph: all results, forward and backward
};

// What a checkpoint inside the region says of a node (torch.utils.checkpoint, CheckpointPolicy).
enum class Policy : std::uint8_t { none, save, recompute };

struct JointNode {
  const char* op = "";  // aten's name of it
  NodeClass kind = NodeClass::fusible;
  std::vector<NodeId> in;
  std::int64_t elements = 0;
  DType dtype = DType::fp32;
  std::int64_t bytes = 0;  // of a tuple, of all its results
  bool parameter = false;  // of an input: it lives as long as the model
  Policy policy = Policy::none;
  std::int32_t attribute = 0;  // tells nodes of one op apart: an axis, a number, a shape
};

struct JointGraph {
  std::vector<JointNode> nodes;  // each behind its operands; the last one is the output
  std::vector<NodeId> results;  // of the forward
  std::vector<NodeId> gradients;  // of the backward, in the order of the inputs; kNoNode: none

  const JointNode& operator[](NodeId id) const { return nodes[static_cast<std::size_t>(id)]; }
};

}  // namespace plimsoll::planner::compiled
