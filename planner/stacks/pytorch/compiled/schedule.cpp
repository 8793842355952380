#include "planner/stacks/pytorch/compiled/schedule.h"

#include <algorithm>

namespace plimsoll::planner::compiled {

namespace {

bool is_library(NodeClass kind) {
  return kind == NodeClass::opaque || kind == NodeClass::tuple;
}

class Scheduler {
 public:
  Scheduler(const JointGraph& graph, const std::vector<bool>& runs,
            const std::vector<NodeId>& given)
      : graph_(graph), runs_(runs), there_(graph.nodes.size()), buffer_(graph.nodes.size()) {
    for (const NodeId id : given) there_[index(id)] = true;
  }
  std::vector<Kernel> run(const std::vector<NodeId>& wanted, bool lazily);

 private:
  static std::size_t index(NodeId id) { return static_cast<std::size_t>(id); }
  NodeId root(NodeId id) const {
    while (!there_[index(id)] && graph_[id].kind == NodeClass::view) id = graph_[id].in[0];
    return id;
  }
  void order(NodeId id, std::vector<NodeId>& out);
  void find_buffers(const std::vector<NodeId>& wanted);
  void collect(NodeId id, Kernel& kernel, std::vector<bool>& seen) const;
  void add(NodeId id, std::vector<Kernel>& out) const;
  void reuse(std::vector<Kernel>& kernels, const std::vector<NodeId>& wanted) const;

  const JointGraph& graph_;
  const std::vector<bool>& runs_;
  std::vector<bool> there_, buffer_;
  std::vector<bool> ordered_;
};

void Scheduler::order(NodeId id, std::vector<NodeId>& out) {
  if (ordered_[index(id)] || !runs_[index(id)] || there_[index(id)]) return;
  ordered_[index(id)] = true;
  for (const NodeId in : graph_[id].in) order(in, out);
  out.push_back(id);
}

// What a library kernel reads or writes, and what is handed on.
void Scheduler::find_buffers(const std::vector<NodeId>& wanted) {
  for (NodeId id = 0; index(id) < graph_.nodes.size(); ++id) {
    if (!runs_[index(id)]) continue;
    const NodeClass kind = graph_[id].kind;
    if (kind == NodeClass::element && is_library(graph_[graph_[id].in[0]].kind))
      buffer_[index(id)] = true;
    if (!is_library(kind)) continue;
    if (kind == NodeClass::opaque) buffer_[index(id)] = true;
    for (const NodeId in : graph_[id].in) buffer_[index(root(in))] = true;
  }
  for (const NodeId id : wanted)
    if (id != kNoNode) buffer_[index(root(id))] = true;
}

// The buffers that a fused kernel reads for a value.
void Scheduler::collect(NodeId id, Kernel& kernel, std::vector<bool>& seen) const {
  id = root(id);
  if (seen[index(id)]) return;
  seen[index(id)] = true;
  const NodeClass kind = graph_[id].kind;
  if (there_[index(id)] || buffer_[index(id)] || kind == NodeClass::input ||
      kind == NodeClass::tangent)
    return kernel.reads.push_back(id);
  kernel.unfused += Bytes(graph_[id].bytes);
  for (const NodeId in : graph_[id].in) collect(in, kernel, seen);
}

void Scheduler::add(NodeId id, std::vector<Kernel>& out) const {
  const JointNode& node = graph_[id];
  if (node.kind == NodeClass::element && is_library(graph_[node.in[0]].kind)) {
    for (Kernel& kernel : out)
      if (kernel.node == node.in[0]) kernel.writes.push_back(id);
    return;
  }
  if (!is_library(node.kind) && !buffer_[index(id)]) return;
  Kernel kernel{.node = id, .library = is_library(node.kind)};
  std::vector<bool> seen(graph_.nodes.size());
  for (const NodeId in : node.in) collect(in, kernel, seen);
  if (node.kind != NodeClass::tuple) kernel.writes.push_back(id);
  out.push_back(std::move(kernel));
}

// Inductor writes a fused kernel's result over an operand that dies, saved tensors among them
// (config.inplace_buffers; donated buffers).
void Scheduler::reuse(std::vector<Kernel>& kernels, const std::vector<NodeId>& wanted) const {
  std::vector<bool> later(graph_.nodes.size());
  for (const NodeId id : wanted)
    if (id != kNoNode) later[index(root(id))] = true;
  for (std::size_t i = kernels.size(); i-- > 0;) {
    Kernel& kernel = kernels[i];
    for (const NodeId id : kernel.reads) {
      const NodeClass kind = graph_[id].kind;
      const bool own = kind != NodeClass::input && kind != NodeClass::tangent;
      if (!kernel.library && own && !later[index(id)] && kernel.in_place == kNoNode &&
          graph_[id].bytes == graph_[kernel.node].bytes)
        kernel.in_place = id;
    }
    for (const NodeId id : kernel.reads) later[index(id)] = true;
  }
}

std::vector<Kernel> Scheduler::run(const std::vector<NodeId>& wanted, bool lazily) {
  find_buffers(wanted);
  std::vector<NodeId> nodes;
  ordered_.assign(graph_.nodes.size(), false);
  const NodeId count = static_cast<NodeId>(graph_.nodes.size());
  NodeId first = 0;
  if (lazily)
    while (first < count && graph_[first].kind != NodeClass::tangent) ++first;
  for (NodeId id = first; id < count; ++id) order(id, nodes);
  std::vector<Kernel> out;
  for (const NodeId id : nodes) add(id, out);
  reuse(out, wanted);
  return out;
}

}  // namespace

NodeId buffer_of(const JointGraph& graph, NodeId id) {
  while (graph[id].kind == NodeClass::view) id = graph[id].in[0];
  return id;
}

std::vector<Kernel> kernels(const JointGraph& graph, const std::vector<bool>& runs,
                            const std::vector<NodeId>& wanted, const std::vector<NodeId>& given,
                            bool lazily) {
  return Scheduler(graph, runs, given).run(wanted, lazily);
}

}  // namespace plimsoll::planner::compiled
