#include "planner/stacks/pytorch/compiled/partition.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <queue>

#include "planner/stacks/pytorch/compiled/min_cut.h"

namespace plimsoll::planner::compiled {

namespace {

constexpr std::int32_t kFar = 1'000'000'000;  // no path to the backward

bool fuses(NodeClass kind) {
  return kind == NodeClass::fusible || kind == NodeClass::view || kind == NodeClass::random ||
         kind == NodeClass::element || kind == NodeClass::statistics;
}
// Views and what is taken out of a tuple are never banned (not_recomputed, ban).
bool recomputes(NodeClass kind) {
  return kind == NodeClass::fusible || kind == NodeClass::statistics;
}

class Partitioner {
 public:
  explicit Partitioner(const JointGraph& graph);
  Partition run();

 private:
  using Nodes = std::vector<NodeId>;
  const JointNode& at(NodeId id) const { return graph_[id]; }
  const Nodes& users(NodeId id) const { return users_[index(id)]; }
  static std::size_t index(NodeId id) { return static_cast<std::size_t>(id); }
  NodeId count() const { return static_cast<NodeId>(graph_.nodes.size()); }
  bool in_forward(NodeId id) const { return order_[index(id)] >= 0; }

  // "Memory fusion": anything is written into a concatenation, which is no producer for others.
  bool fusible(NodeId from, NodeId to) const {
    return at(to).kind == NodeClass::concatenate || (fuses(at(from).kind) && fuses(at(to).kind));
  }
  bool materialized(NodeId id) const;
  bool materialized_backward(NodeId id) const;
  bool reduces(NodeId id) const;
  bool not_recomputed(NodeId id) const;
  void ban(NodeId id);
  void ban_by_kind(), ban_far_uses(), ban_long_chains();
  std::int32_t first_unfusible(const Nodes& start, std::int32_t most) const;
  std::int64_t weight(NodeId id) const;
  std::vector<bool> cut() const;
  std::vector<bool> needed(const Nodes& results, const std::vector<bool>& given) const;

  const JointGraph& graph_;
  std::vector<Nodes> users_;  // each once, in their order
  std::vector<std::int32_t> order_, distance_;  // in the forward; to the backward
  std::vector<bool> tangents_, banned_;
};

// What the results are made of, as far as that is not given.
std::vector<bool> Partitioner::needed(const Nodes& results, const std::vector<bool>& given) const {
  std::vector<bool> out(graph_.nodes.size());
  for (const NodeId id : results)
    if (id != kNoNode) out[index(id)] = true;
  for (NodeId id = count(); id-- > 0;)
    if (out[index(id)] && (given.empty() || !given[index(id)]))
      for (const NodeId in : at(id).in) out[index(in)] = true;
  return out;
}

Partitioner::Partitioner(const JointGraph& graph)
    : graph_(graph),
      users_(graph.nodes.size()),
      order_(graph.nodes.size(), -1),
      distance_(graph.nodes.size(), 0),
      tangents_(graph.nodes.size()),
      banned_(graph.nodes.size()) {
  for (NodeId id = 0; id < count(); ++id) {
    tangents_[index(id)] = at(id).kind == NodeClass::tangent;
    for (const NodeId in : at(id).in) {
      Nodes& users = users_[index(in)];
      if (users.empty() || users.back() != id) users.push_back(id);
      if (tangents_[index(in)]) tangents_[index(id)] = true;
    }
  }
  const std::vector<bool> forward = needed(graph.results, {});
  std::int32_t next = 0;
  for (NodeId id = 0; id < count(); ++id)
    if (forward[index(id)] || at(id).kind == NodeClass::input) order_[index(id)] = next++;
  for (NodeId id = count(); id-- > 0;) {
    if (at(id).kind == NodeClass::output) {
      distance_[index(id)] = kFar;
    } else if (in_forward(id)) {
      distance_[index(id)] = kFar;
      for (const NodeId user : users(id))
        distance_[index(id)] = std::min(distance_[index(id)], distance_[index(user)] + 1);
    }
  }
}

bool Partitioner::materialized(NodeId id) const {
  if (at(id).kind == NodeClass::input) return true;
  return !std::ranges::all_of(users(id), [&](NodeId user) { return fusible(id, user); });
}

bool Partitioner::materialized_backward(NodeId id) const {
  Nodes open{id};
  std::vector<bool> seen(graph_.nodes.size());
  while (!open.empty()) {
    const NodeId from = open.back();
    open.pop_back();
    for (const NodeId user : users(from)) {
      if (!in_forward(user) && !fusible(from, user)) return true;
      if (at(user).kind != NodeClass::view || seen[index(user)]) continue;
      seen[index(user)] = true;
      open.push_back(user);
    }
  }
  return false;
}

bool Partitioner::reduces(NodeId id) const {
  std::int64_t in = 0;
  for (const NodeId operand : at(id).in) in += at(operand).bytes;
  return at(id).bytes * 4 < in;
}

bool Partitioner::not_recomputed(NodeId id) const {
  const JointNode& node = at(id);
  if (node.kind == NodeClass::element) return false;
  if (node.policy == Policy::save || !recomputes(node.kind)) return true;
  return materialized_backward(id) || reduces(id);
}

void Partitioner::ban(NodeId id) {
  if (at(id).kind != NodeClass::view && at(id).policy != Policy::recompute)
    banned_[index(id)] = true;
}

void Partitioner::ban_by_kind() {
  for (NodeId id = 0; id < count(); ++id) {
    if (at(id).kind == NodeClass::output || tangents_[index(id)]) continue;
    if (at(id).kind == NodeClass::input || (in_forward(id) && not_recomputed(id))) ban(id);
  }
}

// The place of the first node behind `start` that no kernel of these fuses.
std::int32_t Partitioner::first_unfusible(const Nodes& start, std::int32_t most) const {
  struct Step {
    std::int32_t order;
    NodeId node;
    bool fused;
    bool operator>(const Step& other) const {
      return order != other.order ? order > other.order : fused && !other.fused;
    }
  };
  std::priority_queue<Step, std::vector<Step>, std::greater<>> open;
  for (const NodeId id : start) open.push({order_[index(id)], id, true});
  std::vector<std::uint8_t> seen(graph_.nodes.size());
  while (!open.empty()) {
    const Step step = open.top();
    open.pop();
    if (!step.fused) return step.order;
    for (const NodeId user : users(step.node)) {
      if (!in_forward(user) || order_[index(user)] > most) continue;
      const bool fused = fusible(step.node, user);
      const std::uint8_t bit = fused ? 1 : 2;
      if ((seen[index(user)] & bit) != 0) continue;
      seen[index(user)] |= bit;
      open.push({order_[index(user)], user, fused});
    }
  }
  return most;
}

// A value that is read near and, behind something that does not fuse, far: the far reader is kept.
void Partitioner::ban_far_uses() {
  for (NodeId id = 0; id < count(); ++id) {
    if (!in_forward(id)) continue;
    Nodes readers;
    std::int32_t last = -1;
    for (const NodeId user : users(id))
      if (in_forward(user)) {
        readers.push_back(user);
        last = std::max(last, order_[index(user)]);
      }
    if (readers.empty()) continue;
    const std::int32_t first = first_unfusible(readers, last);
    for (const NodeId user : readers)
      if (order_[index(user)] > first && fusible(id, user)) ban(user);
  }
}

// No chain of fusible nodes is computed again over more than a hundred nodes.
void Partitioner::ban_long_chains() {
  std::vector<bool> visited(graph_.nodes.size());
  using Entry = std::pair<std::int32_t, NodeId>;
  for (NodeId start = 0; start < count(); ++start) {
    if (!in_forward(start)) continue;
    std::priority_queue<Entry, std::vector<Entry>, std::greater<>> open;
    open.push({order_[index(start)], start});
    while (!open.empty()) {
      const NodeId id = open.top().second;
      open.pop();
      if (visited[index(id)]) continue;
      visited[index(id)] = true;
      if (order_[index(id)] > order_[index(start)] + 100 && open.empty()) {
        ban(id);
        break;
      }
      for (const NodeId user : users(id))
        if (in_forward(user) && fusible(id, user) && !banned_[index(user)])
          open.push({order_[index(user)], user});
    }
  }
}

// Bytes, more for what is farther from the backward, and twice for what no kernel would write.
std::int64_t Partitioner::weight(NodeId id) const {
  const JointNode& node = at(id);
  if (node.kind == NodeClass::tuple || node.kind == NodeClass::statistics)
    return FlowNetwork::kUnbounded;
  if (node.parameter) return 0;
  const int distance = std::clamp(distance_[index(id)], 1, 100);
  const auto bytes =
      static_cast<std::int64_t>(static_cast<double>(node.bytes) * std::pow(1.1, distance));
  return materialized(id) ? bytes : bytes * 2;
}

// By node: its result is on the backward's side, and whether the node itself is.
std::vector<bool> Partitioner::cut() const {
  const std::size_t nodes = graph_.nodes.size(), source = 2 * nodes, sink = source + 1;
  FlowNetwork network(2 * nodes + 2);
  for (NodeId id = 0; id < count(); ++id) {
    const std::size_t in = 2 * index(id), out = in + 1;
    const JointNode& node = at(id);
    if (node.kind == NodeClass::output) continue;
    if (banned_[index(id)]) network.add_edge(source, in, FlowNetwork::kUnbounded);
    if (tangents_[index(id)] || node.policy == Policy::recompute) {
      network.add_edge(in, sink, FlowNetwork::kUnbounded);
      continue;
    }
    const bool gradient = std::ranges::find(graph_.gradients, id) != graph_.gradients.end();
    if (gradient) network.add_edge(out, sink, FlowNetwork::kUnbounded);
    network.add_edge(in, out, weight(id));
    for (const NodeId user : users(id))
      network.add_edge(out, 2 * index(user), FlowNetwork::kUnbounded);
  }
  return network.sink_side(source, sink);
}

Partition Partitioner::run() {
  ban_by_kind();
  ban_far_uses();
  ban_long_chains();
  const std::vector<bool> sink_side = cut();
  Partition out;
  std::vector<bool> given(graph_.nodes.size());
  for (std::size_t i = 0; i < given.size(); ++i)
    given[i] = !sink_side[2 * i] && sink_side[2 * i + 1];
  out.backward = needed(graph_.gradients, given);
  Nodes results = graph_.results;
  for (NodeId id = 0; id < count(); ++id) {
    if (!given[index(id)] || !out.backward[index(id)]) continue;
    out.saved.push_back(id);
    results.push_back(id);
    out.backward[index(id)] = false;
  }
  out.forward = needed(results, {});
  return out;
}

}  // namespace

Partition partition(const JointGraph& graph) {
  return Partitioner(graph).run();
}

}  // namespace plimsoll::planner::compiled
