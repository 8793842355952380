#include "planner/stacks/pytorch/compiled/min_cut.h"

#include <algorithm>

#include "models/base/error.h"

namespace plimsoll::planner::compiled {

void FlowNetwork::add_edge(std::size_t from, std::size_t to, std::int64_t capacity) {
  first_[from].push_back(edges_.size());
  edges_.push_back({to, capacity});
  first_[to].push_back(edges_.size());
  edges_.push_back({from, 0});
}

bool FlowNetwork::find_levels(std::size_t source, std::size_t sink) {
  level_.assign(first_.size(), -1);
  level_[source] = 0;
  std::vector<std::size_t> queue{source};
  for (std::size_t i = 0; i < queue.size(); ++i)
    for (const std::size_t e : first_[queue[i]])
      if (edges_[e].capacity > 0 && level_[edges_[e].to] < 0) {
        level_[edges_[e].to] = level_[queue[i]] + 1;
        queue.push_back(edges_[e].to);
      }
  return level_[sink] >= 0;
}

std::int64_t FlowNetwork::push(std::size_t from, std::size_t sink, std::int64_t most) {
  if (from == sink) return most;
  for (std::size_t& i = next_[from]; i < first_[from].size(); ++i) {
    const std::size_t e = first_[from][i];
    if (edges_[e].capacity == 0 || level_[edges_[e].to] != level_[from] + 1) continue;
    const std::int64_t sent = push(edges_[e].to, sink, std::min(most, edges_[e].capacity));
    if (sent == 0) continue;
    edges_[e].capacity -= sent;
    edges_[e ^ 1].capacity += sent;
    return sent;
  }
  return 0;
}

std::vector<bool> FlowNetwork::sink_side(std::size_t source, std::size_t sink) {
  while (find_levels(source, sink)) {
    next_.assign(first_.size(), 0);
    while (const std::int64_t sent = push(source, sink, kUnbounded))
      check(sent < kUnbounded, ErrorKind::internal, "a partition without a finite cut");
  }
  std::vector<bool> reaches(first_.size());
  reaches[sink] = true;
  std::vector<std::size_t> queue{sink};
  for (std::size_t i = 0; i < queue.size(); ++i)
    for (const std::size_t e : first_[queue[i]]) {
      const std::size_t from = edges_[e].to;
      if (edges_[e ^ 1].capacity == 0 || reaches[from]) continue;
      reaches[from] = true;
      queue.push_back(from);
    }
  return reaches;
}

}  // namespace plimsoll::planner::compiled
