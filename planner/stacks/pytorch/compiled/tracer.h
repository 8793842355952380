// Writes a joint graph (joint_graph.h): the forward, operation by operation as AOTAutograd traces
// it after Inductor's decompositions, and from that the backward by each operation's formula.
//
// Equal operations on equal operands are one node, as fx_graph_cse leaves them.
#pragma once

#include <functional>
#include <map>
#include <tuple>
#include <vector>

#include "planner/stacks/pytorch/compiled/joint_graph.h"

namespace plimsoll::planner::compiled {

// What tells views of one value apart.
enum class View : std::int32_t {
  rows,
  sequence,
  heads,
  swap,
  transposed,
  unsqueezed,
  first,
  second,
  third,
  pairs,
  real,
  expanded
};

class Tracer {
 public:
  NodeId input(std::int64_t elements, DType dtype, bool grad);
  NodeId parameter(std::int64_t elements, DType dtype, bool trains);

  NodeId view(NodeId x, View how) { return view(x, how, elements(x)); }
  NodeId view(NodeId x, View how, std::int64_t to);  // to fewer elements: a slice; more: expanded
  NodeId cast(NodeId x, DType to);  // x itself where it has that dtype
  NodeId negate(NodeId x);
  NodeId shift(NodeId x);  // plus a number
  NodeId scale(NodeId x);  // times a number
  NodeId square(NodeId x) { return power(x, 2); }
  NodeId cube(NodeId x) { return power(x, 3); }
  NodeId mean(NodeId x, std::int64_t rows);
  NodeId rsqrt(NodeId x);
  NodeId tanh(NodeId x);
  NodeId multiply(NodeId a, NodeId b);  // the larger one's elements, the promoted dtype
  NodeId add(NodeId a, NodeId b);
  NodeId concatenate(NodeId a, NodeId b);
  // Parts as views; their gradients are joined.
  std::vector<NodeId> split(NodeId x, const std::vector<std::int64_t>& parts);
  NodeId dropout(NodeId x);
  NodeId copy(NodeId x);
  NodeId silu(NodeId x);
  NodeId gelu(NodeId x, bool tanh);
  NodeId relu(NodeId x);
  // Statistics of rows; `weight` and `bias` may be kNoNode.
  NodeId layer_norm(NodeId x, NodeId weight, NodeId bias, std::int64_t rows);
  // x [rows, in] times weight; `transposes`: it is stored as [out, in].
  NodeId gemm(NodeId x, NodeId weight, NodeId bias, std::int64_t rows, bool transposes);
  // torchao's Float8Linear with a scale for each tensor: x [rows, in] times the weight [out, in],
  // which is cast here or, with its `scale`, was before it was gathered.
  NodeId float8_gemm(NodeId x, NodeId weight, NodeId scale, std::int64_t rows);
  struct Attention {
    NodeId q, k, v;
    std::int64_t statistics = 0;  // fp32 values
    const char* op = "_scaled_dot_product_flash_attention";
  };
  NodeId attention(const Attention& of);
  NodeId complex(NodeId x, NodeId table);  // pairs of x times complex numbers

  // From now on nodes are of a checkpoint: kept or computed again.
  void set_policy(Policy policy) { policy_ = policy; }
  void keep_gemms(std::function<bool()> keeps) { keeps_gemm_ = std::move(keeps); }
  void keep_attention(bool keeps) { keeps_attention_ = keeps; }

  // The joint graph of a region that returns `result`.
  JointGraph finish(NodeId result);

  std::int64_t elements(NodeId id) const { return graph_[id].elements; }
  DType dtype(NodeId id) const { return graph_[id].dtype; }

 private:
  using Operands = std::vector<NodeId>;
  NodeId add_node(JointNode node);
  NodeId node(const char* op, NodeClass kind, Operands in, std::int64_t elements, DType dtype,
              std::int32_t attribute = 0);
  NodeId pointwise(const char* op, Operands in, std::int32_t attribute = 0);
  NodeId pointwise(const char* op, Operands in, DType dtype, std::int32_t attribute = 0);
  NodeId power(NodeId x, std::int32_t exponent);
  struct Float8 {
    NodeId values, scale;
  };
  Float8 float8(NodeId x, DType to);
  NodeId reduced(NodeId x, std::int64_t to);  // a sum, where it has more elements than that
  bool grad(NodeId id) const { return grads_[static_cast<std::size_t>(id)]; }
  // `back` gets the result's gradient, when that is whole.
  NodeId with_backward(NodeId out, const Operands& in, std::function<void(NodeId)> back);
  void send(NodeId to, NodeId gradient);

  JointGraph graph_;
  std::map<std::tuple<std::string_view, std::vector<NodeId>, std::int64_t, int, std::int32_t>,
           NodeId>
      known_;
  std::vector<bool> grads_;
  std::vector<NodeId> gradients_;  // by node: what has arrived of its gradient
  struct Back {
    NodeId out;
    std::function<void(NodeId)> run;
  };
  std::vector<Back> tape_;
  std::vector<NodeId> inputs_;
  Policy policy_ = Policy::none;
  std::function<bool()> keeps_gemm_;
  bool keeps_attention_ = false, backward_ = false;
};

}  // namespace plimsoll::planner::compiled
