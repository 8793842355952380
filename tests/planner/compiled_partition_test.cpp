// What the min-cut partitioner keeps of small joint graphs, each worked out by hand from the rules
// of torch/_functorch/partitioners.py.
#include <doctest/doctest.h>

#include <fstream>
#include <map>
#include <nlohmann/json.hpp>

#include "planner/stacks/pytorch/compiled/min_cut.h"
#include "planner/stacks/pytorch/compiled/partition.h"

namespace plimsoll::planner::compiled {
namespace {

struct Maker {
  JointGraph graph;
  NodeId add(const char* op, NodeClass kind, std::vector<NodeId> in, std::int64_t bytes) {
    graph.nodes.push_back({.op = op, .kind = kind, .in = std::move(in), .bytes = bytes});
    return static_cast<NodeId>(graph.nodes.size() - 1);
  }
  void finish(std::vector<NodeId> results, std::vector<NodeId> gradients) {
    std::vector<NodeId> all = results;
    for (const NodeId id : gradients)
      if (id != kNoNode) all.push_back(id);
    graph.results = std::move(results);
    graph.gradients = std::move(gradients);
    add("output", NodeClass::output, std::move(all), 0);
  }
};

// s → a → {b, c} → t: 3 through a, then 1 + 1 into t. The cut next to the sink is {b→t, c→t}.
TEST_CASE("the minimum cut next to the sink is taken") {
  FlowNetwork network(5);
  network.add_edge(0, 1, 2);
  network.add_edge(1, 2, 5);
  network.add_edge(1, 3, 5);
  network.add_edge(2, 4, 1);
  network.add_edge(3, 4, 1);
  CHECK(network.sink_side(0, 4) == std::vector<bool>{false, false, false, false, true});
}

// y = mm(cos(x)); backward: mm(d, cos(x)), which reads cos(x) as a GEMM does. A GEMM's
// operand is written anyway, so that it is kept rather than computed from x again.
TEST_CASE("what a GEMM of the backward reads is kept, not computed again") {
  Maker m;
  const NodeId x = m.add("x", NodeClass::input, {}, 8);
  const NodeId cosine = m.add("cos", NodeClass::fusible, {x}, 8);
  const NodeId y = m.add("mm", NodeClass::opaque, {cosine}, 8);
  const NodeId d = m.add("tangent", NodeClass::tangent, {}, 8);
  const NodeId dw = m.add("mm", NodeClass::opaque, {cosine, d}, 8);
  m.finish({y}, {dw});
  CHECK(partition(m.graph).saved == std::vector<NodeId>{cosine});
}

// y = sin(exp(x)); backward: d · cos(exp(x)) · exp(x): pointwise throughout, so x alone is kept.
TEST_CASE("a pointwise chain is computed again from its input") {
  Maker m;
  const NodeId x = m.add("x", NodeClass::input, {}, 8);
  const NodeId e = m.add("exp", NodeClass::fusible, {x}, 8);
  const NodeId y = m.add("sin", NodeClass::fusible, {e}, 8);
  const NodeId d = m.add("tangent", NodeClass::tangent, {}, 8);
  const NodeId c = m.add("cos", NodeClass::fusible, {e}, 8);
  const NodeId a = m.add("mul", NodeClass::fusible, {d, c}, 8);
  const NodeId dx = m.add("mul", NodeClass::fusible, {a, e}, 8);
  m.finish({y}, {dx});
  const Partition out = partition(m.graph);
  CHECK(out.saved == std::vector<NodeId>{x});
  CHECK(out.backward[static_cast<std::size_t>(e)]);  // again
  CHECK_FALSE(out.backward[static_cast<std::size_t>(y)]);
}

// A row's statistic is a quarter of what it was made of or less: never computed again, though the
// backward could from x, which it reads as well.
TEST_CASE("a reduction to less than a quarter is kept") {
  Maker m;
  const NodeId x = m.add("x", NodeClass::input, {}, 800);
  const NodeId mean = m.add("mean", NodeClass::fusible, {x}, 8);
  const NodeId y = m.add("mul", NodeClass::fusible, {x, mean}, 800);
  const NodeId d = m.add("tangent", NodeClass::tangent, {}, 800);
  const NodeId a = m.add("mul", NodeClass::fusible, {d, mean}, 800);
  const NodeId dx = m.add("mul", NodeClass::fusible, {a, x}, 800);
  m.finish({y}, {dx});
  CHECK(partition(m.graph).saved == std::vector<NodeId>{x, mean});
}

// What a checkpoint recomputes is not kept, whatever it costs; what its policy saves is.
TEST_CASE("a checkpoint's policy overrides the cut") {
  const auto saved = [](Policy policy) {
    Maker m;
    const NodeId x = m.add("x", NodeClass::input, {}, 8);
    const NodeId h = m.add("mm", NodeClass::opaque, {x}, 4);
    const NodeId y = m.add("mm", NodeClass::opaque, {h}, 8);
    m.graph.nodes[static_cast<std::size_t>(h)].policy = policy;
    const NodeId d = m.add("tangent", NodeClass::tangent, {}, 8);
    const NodeId dw = m.add("mm", NodeClass::opaque, {h, d}, 8);
    m.finish({y}, {dw});
    return partition(m.graph).saved;
  };
  CHECK(saved(Policy::recompute) == std::vector<NodeId>{0});
  CHECK(saved(Policy::save) == std::vector<NodeId>{1});
}

// x → f₁ … f₁₂₀, the backward multiplies by one of them, and x is the cheapest to keep of what that
// is made of. Chains begin at f₁, since nothing fuses with an input: f₁₀₂ is more than a hundred
// nodes behind it and not computed again; f₁₀₁ is. Another reader of f₁, which comes behind the
// chain (`beside`), leaves a second way open, and then nothing is banned.
TEST_CASE("a chain is computed again over a hundred nodes and no more") {
  const auto saved = [](std::int32_t read, bool beside) {
    Maker m;
    const NodeId x = m.add("x", NodeClass::input, {}, 1);
    NodeId last = x;
    for (int i = 1; i <= 120; ++i) last = m.add("cos", NodeClass::fusible, {last}, 1'000'000);
    std::vector<NodeId> results{last};
    if (beside) {
      const NodeId other = m.add("sin", NodeClass::fusible, {1}, 1'000'000);
      results.push_back(m.add("exp", NodeClass::fusible, {other}, 1'000'000));
    }
    const NodeId d = m.add("tangent", NodeClass::tangent, {}, 1'000'000);
    m.finish(results, {m.add("mul", NodeClass::fusible, {d, read}, 1'000'000)});
    return partition(m.graph).saved;
  };
  CHECK(saved(101, false) == std::vector<NodeId>{0});
  CHECK(saved(102, false) == std::vector<NodeId>{102});
  CHECK(saved(102, true) == std::vector<NodeId>{0});
}

JointGraph drawn(const nlohmann::json& of) {
  const std::map<std::string, NodeClass> kinds{{"input", NodeClass::input},
                                               {"tangent", NodeClass::tangent},
                                               {"view", NodeClass::view},
                                               {"fusible", NodeClass::fusible},
                                               {"random", NodeClass::random},
                                               {"concatenate", NodeClass::concatenate},
                                               {"opaque", NodeClass::opaque},
                                               {"tuple", NodeClass::tuple},
                                               {"statistics", NodeClass::statistics},
                                               {"element", NodeClass::element}};
  const std::map<std::string, Policy> policies{
      {"", Policy::none}, {"save", Policy::save}, {"recompute", Policy::recompute}};
  Maker m;
  for (const auto& node : of["nodes"]) {
    m.add("", kinds.at(node[0]), node[1], node[2]);
    m.graph.nodes.back().parameter = node[3] == 1;
    m.graph.nodes.back().policy = policies.at(node[4]);
  }
  m.finish(of["results"], of["gradients"]);
  return m.graph;
}

// tools/oracle/partitions.py: torch's own partitioner on drawn graphs of every kind of node, some
// with chains of more than a hundred fusible ones, some with a checkpoint's policies.
TEST_CASE("of drawn graphs the partition saves and repeats what torch's does") {
  const auto document = nlohmann::json::parse(std::ifstream(PLIMSOLL_GOLDEN "/partitions.json"));
  std::size_t repeated = 0;
  for (std::size_t i = 0; i < document["graphs"].size(); ++i) {
    CAPTURE(i);
    const auto& of = document["graphs"][i];
    const JointGraph graph = drawn(of);
    const Partition out = partition(graph);
    CHECK(out.saved == of["saved"].get<std::vector<NodeId>>());
    std::vector<NodeId> backward;
    for (NodeId id = 0; id + 1 < static_cast<NodeId>(graph.nodes.size()); ++id) {
      const NodeClass kind = graph[id].kind;
      if (!out.backward[static_cast<std::size_t>(id)] || kind == NodeClass::tangent ||
          kind == NodeClass::input)
        continue;
      backward.push_back(id);
      repeated += out.forward[static_cast<std::size_t>(id)];
    }
    CHECK(backward == of["backward"].get<std::vector<NodeId>>());
  }
  CHECK(document["graphs"].size() == 160);
  CHECK(repeated > 100);
}

}  // namespace
}  // namespace plimsoll::planner::compiled
