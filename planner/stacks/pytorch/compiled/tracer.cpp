// Elementary operations of a joint graph.
#include "planner/stacks/pytorch/compiled/tracer.h"

#include <algorithm>

#include "models/base/quantity.h"
#include "planner/stacks/pytorch/regime.h"

namespace plimsoll::planner::compiled {

NodeId Tracer::add_node(JointNode node) {
  if (node.kind != NodeClass::tuple) node.bytes = storage(Count(node.elements), node.dtype).value();
  const bool made = !backward_ && node.kind != NodeClass::input;
  if (made && node.policy == Policy::none) node.policy = policy_;
  graph_.nodes.push_back(std::move(node));
  grads_.push_back(false);
  gradients_.push_back(kNoNode);
  return static_cast<NodeId>(graph_.nodes.size() - 1);
}

NodeId Tracer::node(const char* op, NodeClass kind, Operands in, std::int64_t elements, DType dtype,
                    std::int32_t attribute) {
  const auto key =
      std::tuple(std::string_view(op), in, elements, static_cast<int>(dtype), attribute);
  if (const auto found = known_.find(key); found != known_.end()) return found->second;
  const NodeId id = add_node({.op = op,
                              .kind = kind,
                              .in = std::move(in),
                              .elements = elements,
                              .dtype = dtype,
                              .attribute = attribute});
  known_.emplace(key, id);
  return id;
}

NodeId Tracer::pointwise(const char* op, Operands in, DType dtype, std::int32_t attribute) {
  std::int64_t most = 0;
  for (const NodeId id : in) most = std::max(most, elements(id));
  return node(op, NodeClass::fusible, std::move(in), most, dtype, attribute);
}

NodeId Tracer::pointwise(const char* op, Operands in, std::int32_t attribute) {
  DType wide = dtype(in.front());
  for (const NodeId id : in) wide = pytorch::promoted(wide, dtype(id));
  return pointwise(op, std::move(in), wide, attribute);
}

NodeId Tracer::with_backward(NodeId out, const Operands& in, std::function<void(NodeId)> back) {
  if (std::ranges::none_of(in, [&](NodeId id) { return id != kNoNode && grad(id); })) return out;
  grads_[static_cast<std::size_t>(out)] = true;
  tape_.push_back({out, std::move(back)});
  return out;
}

void Tracer::send(NodeId to, NodeId gradient) {
  if (to == kNoNode || !grad(to)) return;
  NodeId& sum = gradients_[static_cast<std::size_t>(to)];
  const NodeId next = sum == kNoNode ? gradient : pointwise("add", {sum, gradient});
  gradients_[static_cast<std::size_t>(to)] = next;
}

NodeId Tracer::reduced(NodeId x, std::int64_t to) {
  if (elements(x) == to) return x;
  return node("sum", NodeClass::fusible, {x}, to, dtype(x));
}

NodeId Tracer::input(std::int64_t elements, DType dtype, bool grad) {
  const NodeId id = add_node(
      {.op = "input", .kind = NodeClass::input, .in = {}, .elements = elements, .dtype = dtype});
  grads_[static_cast<std::size_t>(id)] = grad;
  inputs_.push_back(id);
  return id;
}

NodeId Tracer::parameter(std::int64_t elements, DType dtype, bool trains) {
  const NodeId id = input(elements, dtype, trains);
  graph_.nodes[static_cast<std::size_t>(id)].parameter = true;
  return id;
}

NodeId Tracer::view(NodeId x, View how, std::int64_t to) {
  const auto tag = static_cast<std::int32_t>(how);
  const NodeId out = node("view", NodeClass::view, {x}, to, dtype(x), tag);
  return with_backward(out, {x}, [=, this](NodeId d) {
    if (to < elements(x))  // written into zeros of the whole
      return send(x, node("slice_scatter", NodeClass::fusible, {d}, elements(x), dtype(d), tag));
    const NodeId back = reduced(d, elements(x));
    send(x, back != d ? back : node("view", NodeClass::view, {d}, elements(x), dtype(d), tag));
  });
}

NodeId Tracer::cast(NodeId x, DType to) {
  const DType from = dtype(x);
  if (from == to) return x;
  const NodeId out = pointwise("convert_element_type", {x}, to);
  return with_backward(
      out, {x}, [=, this](NodeId d) { send(x, pointwise("convert_element_type", {d}, from)); });
}

NodeId Tracer::negate(NodeId x) {
  return with_backward(pointwise("neg", {x}), {x},
                       [=, this](NodeId d) { send(x, pointwise("neg", {d})); });
}

NodeId Tracer::shift(NodeId x) {
  return with_backward(pointwise("add", {x}, 1), {x}, [=, this](NodeId d) { send(x, d); });
}

NodeId Tracer::scale(NodeId x) {
  return with_backward(pointwise("mul", {x}, 1), {x},
                       [=, this](NodeId d) { send(x, pointwise("mul", {d}, 1)); });
}

// pow_backward: d · (n · xⁿ⁻¹).
NodeId Tracer::power(NodeId x, std::int32_t exponent) {
  return with_backward(pointwise("pow", {x}, exponent), {x}, [=, this](NodeId d) {
    const NodeId lower = pointwise("pow", {x}, exponent - 1);
    send(x, pointwise("mul", {d, pointwise("mul", {lower}, exponent)}));
  });
}

NodeId Tracer::mean(NodeId x, std::int64_t rows) {
  const NodeId out = node("mean", NodeClass::fusible, {x}, rows, dtype(x));
  return with_backward(out, {x}, [=, this](NodeId d) {
    const NodeId wide = node("expand", NodeClass::view, {d}, elements(x), dtype(d));
    send(x, pointwise("div", {wide}, 1));
  });
}

// −0.5 · d · result³.
NodeId Tracer::rsqrt(NodeId x) {
  const NodeId out = pointwise("rsqrt", {x});
  return with_backward(out, {x}, [=, this](NodeId d) {
    const NodeId cube =
        pointwise("pow", {node("alias", NodeClass::view, {out}, elements(out), dtype(out))}, 3);
    send(x, pointwise("mul", {pointwise("mul", {d}, 3), cube}));
  });
}

NodeId Tracer::multiply(NodeId a, NodeId b) {
  return with_backward(pointwise("mul", {a, b}), {a, b}, [=, this](NodeId d) {
    const NodeId to_b = grad(b) ? pointwise("mul", {d, a}) : kNoNode;
    const NodeId to_a = grad(a) ? pointwise("mul", {d, b}) : kNoNode;
    const auto back = [&](NodeId of, NodeId gradient) {
      if (gradient == kNoNode) return;
      const DType own = dtype(of);
      const NodeId sum = reduced(gradient, elements(of));
      send(of, dtype(sum) == own ? sum : pointwise("convert_element_type", {sum}, own));
    };
    back(b, to_b);
    back(a, to_a);
  });
}

NodeId Tracer::add(NodeId a, NodeId b) {
  return with_backward(pointwise("add", {a, b}), {a, b}, [=, this](NodeId d) {
    for (const NodeId of : {a, b}) {
      if (!grad(of)) continue;
      const NodeId sum = reduced(d, elements(of));
      const DType own = dtype(of);
      send(of, dtype(sum) == own ? sum : pointwise("convert_element_type", {sum}, own));
    }
  });
}

NodeId Tracer::concatenate(NodeId a, NodeId b) {
  const NodeId out =
      node("cat", NodeClass::concatenate, {a, b}, elements(a) + elements(b), dtype(a));
  return with_backward(out, {a, b}, [=, this](NodeId d) {
    for (const NodeId of : {a, b})
      send(of, node("slice", NodeClass::view, {d}, elements(of), dtype(d), of == a ? 1 : 2));
  });
}

NodeId Tracer::copy(NodeId x) {
  return with_backward(pointwise("clone", {x}), {x}, [=, this](NodeId d) { send(x, d); });
}

// Inductor's silu: in fp32 x / (1 + exp(−x)); silu_backward by the same sigmoid.
NodeId Tracer::silu(NodeId x) {
  const DType own = dtype(x);
  const auto widen = [=, this](NodeId of) {
    return own == DType::fp32 ? of : pointwise("convert_element_type", {of}, DType::fp32);
  };
  const auto narrow = [=, this](NodeId of) {
    return own == DType::fp32 ? of : pointwise("convert_element_type", {of}, own);
  };
  const NodeId wide = widen(x);
  const NodeId sum = pointwise("add", {pointwise("exp", {pointwise("neg", {wide})})}, 1);
  const NodeId out = narrow(pointwise("div", {wide, sum}));
  return with_backward(out, {x}, [=, this](NodeId d) {
    const NodeId sigmoid = pointwise("mul", {pointwise("reciprocal", {sum})}, 1);
    const NodeId left = pointwise("mul", {widen(d), sigmoid});
    const NodeId right =
        pointwise("add", {pointwise("mul", {wide, pointwise("sub", {sigmoid})})}, 1);
    send(x, narrow(pointwise("mul", {left, right})));
  });
}

}  // namespace plimsoll::planner::compiled
