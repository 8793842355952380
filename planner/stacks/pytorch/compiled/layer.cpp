#include "planner/stacks/pytorch/compiled/layer.h"

#include <algorithm>

namespace plimsoll::planner::compiled {

Layer::Layer(const RegionQuestion& question) : region(block_region(question)) {
  const JointGraph& graph = region.graph;
  const Partition parts = partition(graph);
  weight_of.assign(graph.nodes.size(), -1);
  std::vector<NodeId> handed{graph.results.front()};
  for (const NodeId id : parts.saved) {
    handed.push_back(id);
    const NodeId buffer = buffer_of(graph, id);
    const bool made = !graph[buffer].parameter;
    if (made && std::ranges::find(saved, buffer) == saved.end()) saved.push_back(buffer);
  }
  forward = kernels(graph, parts.forward, handed, {}, false);
  backward = kernels(graph, parts.backward, graph.gradients, saved, true);
  result = buffer_of(graph, graph.results.front());
  for (std::size_t i = 0; i < region.weights.size(); ++i) {
    const NodeId gradient = graph.gradients[region.weights[i].place];
    if (gradient != kNoNode)
      weight_of[static_cast<std::size_t>(buffer_of(graph, gradient))] =
          static_cast<std::int32_t>(i);
  }
  if (graph.gradients.front() != kNoNode)
    input_gradient = buffer_of(graph, graph.gradients.front());
}

}  // namespace plimsoll::planner::compiled
