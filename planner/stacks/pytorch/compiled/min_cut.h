// A minimum cut of a directed graph with capacities.
#pragma once

#include <cstdint>
#include <vector>

namespace plimsoll::planner::compiled {

// Dinic's algorithm. Of several minimum cuts the one next to the sink, as networkx gives it
// (algorithms/flow/maxflow.py, minimum_cut: what reaches the sink in the residual network).
class FlowNetwork {
 public:
  static constexpr std::int64_t kUnbounded = std::int64_t{1} << 60;
  explicit FlowNetwork(std::size_t vertices) : first_(vertices) {}

  void add_edge(std::size_t from, std::size_t to, std::int64_t capacity);
  // By vertex: it is on the sink's side. Throws Error{internal} where no finite cut exists.
  std::vector<bool> sink_side(std::size_t source, std::size_t sink);

 private:
  struct Edge {
    std::size_t to;
    std::int64_t capacity;  // what is left of it
  };
  bool find_levels(std::size_t source, std::size_t sink);
  std::int64_t push(std::size_t from, std::size_t sink, std::int64_t most);

  std::vector<std::vector<std::size_t>>
      first_;  // edges by vertex; an edge's reverse is its number ^ 1
  std::vector<Edge> edges_;
  std::vector<std::int32_t> level_;
  std::vector<std::size_t> next_;
};

}  // namespace plimsoll::planner::compiled
