// Activations and LayerNorm in a joint graph, as Inductor decomposes them
// (torch/_decomp/decompositions.py, torch/_inductor/decomposition.py).
#include "planner/stacks/pytorch/compiled/tracer.h"

namespace plimsoll::planner::compiled {

namespace {
constexpr std::int32_t kNumber = 7;  // a factor or summand that is no tensor
}

NodeId Tracer::tanh(NodeId x) {
  const NodeId out = pointwise("tanh", {x});
  return with_backward(out, {x}, [=, this](NodeId d) {
    const DType own = dtype(x);
    const auto cast_to = [this](NodeId of, DType to) {
      return dtype(of) == to ? of : pointwise("convert_element_type", {of}, to);
    };
    const NodeId alias = node("alias", NodeClass::view, {out}, elements(out), dtype(out));
    const NodeId wide = cast_to(alias, DType::fp32);
    const NodeId slope = pointwise("sub", {pointwise("mul", {wide, wide})});
    send(x, cast_to(pointwise("mul", {cast_to(d, DType::fp32), slope}), own));
  });
}

NodeId Tracer::relu(NodeId x) {
  const NodeId out = pointwise("relu", {x});
  return with_backward(out, {x}, [=, this](NodeId d) {
    const NodeId alias = node("alias", NodeClass::view, {out}, elements(out), dtype(out));
    const NodeId below = pointwise("le", {alias}, DType::boolean);
    send(x, pointwise("where", {below, d}, dtype(d)));
  });
}

// aten.gelu in fp32, and gelu_backward, both taken apart.
NodeId Tracer::gelu(NodeId x, bool by_tanh) {
  const DType own = dtype(x);
  const auto widen = [=, this](NodeId of) {
    return own == DType::fp32 ? of : pointwise("convert_element_type", {of}, DType::fp32);
  };
  const auto narrow = [=, this](NodeId of) {
    return own == DType::fp32 ? of : pointwise("convert_element_type", {of}, own);
  };
  const auto number = [this](const char* op, NodeId of, std::int32_t which = kNumber) {
    return pointwise(op, {of}, which);
  };
  const NodeId wide = widen(x);
  const auto inner = [=, this] {
    if (!by_tanh) return pointwise("erf", {number("mul", wide, 11)});
    const NodeId cube = pointwise("mul", {pointwise("mul", {wide, wide}), wide});
    return pointwise("tanh",
                     {number("mul", pointwise("add", {wide, number("mul", cube, 12)}), 13)});
  }();
  const NodeId half = number("mul", wide, 14), sum = number("add", inner, 15);
  const NodeId out = narrow(pointwise("mul", {half, sum}));
  return with_backward(out, {x}, [=, this](NodeId d) {
    const NodeId d_wide = widen(d);
    const NodeId left = number("mul", sum, 16);
    const NodeId square = pointwise("mul", {wide, wide});
    const NodeId density = by_tanh ? number("sub", pointwise("mul", {inner, inner}))
                                   : number("mul", pointwise("exp", {number("mul", square, 17)}));
    const NodeId slope =
        by_tanh ? pointwise("mul", {pointwise("mul", {half, density}), number("mul", square, 18)})
                : pointwise("mul", {wide, density});
    send(x, narrow(pointwise("mul", {d_wide, pointwise("add", {left, slope})})));
  });
}

// var_mean, then (x − mean) · rsqrt(var + eps) · weight + bias, in fp32.
NodeId Tracer::layer_norm(NodeId x, NodeId weight, NodeId bias, std::int64_t rows) {
  const NodeId both = node("var_mean", NodeClass::statistics, {x}, 2 * rows, dtype(x));
  const NodeId variance = node("getitem", NodeClass::element, {both}, rows, dtype(x), 0);
  const NodeId mean = node("getitem", NodeClass::element, {both}, rows, dtype(x), 1);
  const NodeId root = pointwise("rsqrt", {pointwise("add", {variance}, kNumber)});
  const NodeId centered = pointwise("sub", {x, mean});
  const NodeId normal = pointwise("mul", {centered, root});
  const NodeId scaled = weight == kNoNode ? normal : pointwise("mul", {normal, weight}, dtype(x));
  const NodeId out = bias == kNoNode ? scaled : pointwise("add", {scaled, bias}, dtype(x));
  return with_backward(out, {x, weight, bias}, [=, this](NodeId d) {
    const auto low = [this](NodeId sum, NodeId of) {
      return dtype(of) == dtype(sum) ? sum : pointwise("convert_element_type", {sum}, dtype(of));
    };
    const NodeId g = weight == kNoNode ? d : pointwise("mul", {d, weight}, dtype(d));
    const NodeId a = pointwise("mul", {g}, 21);
    const NodeId b = node("sum", NodeClass::fusible, {g}, rows, dtype(g));
    const NodeId c =
        node("sum", NodeClass::fusible, {pointwise("mul", {g, normal})}, rows, dtype(g));
    const NodeId inner =
        pointwise("sub", {pointwise("sub", {a, b}), pointwise("mul", {normal, c})});
    const NodeId ratio = pointwise("div", {root}, 22);
    if (grad(x)) send(x, pointwise("mul", {ratio, inner}));
    if (weight != kNoNode && grad(weight))
      send(weight, low(reduced(pointwise("mul", {d, normal}), elements(weight)), weight));
    if (bias != kNoNode && grad(bias)) send(bias, low(reduced(d, elements(bias)), bias));
  });
}

std::vector<NodeId> Tracer::split(NodeId x, const std::vector<std::int64_t>& parts) {
  const NodeId whole = node("split", NodeClass::view, {x}, elements(x), dtype(x), 40);
  std::vector<NodeId> out;
  std::int32_t which = 41;
  for (const std::int64_t size : parts)
    out.push_back(node("getitem", NodeClass::view, {whole}, size, dtype(x), which++));
  if (!grad(x)) return out;
  for (const NodeId part : out) grads_[static_cast<std::size_t>(part)] = true;
  tape_.push_back({out.front(), [=, this](NodeId) {
                     Operands arrived;
                     for (const NodeId part : out)
                       arrived.push_back(gradients_[static_cast<std::size_t>(part)]);
                     send(x, node("cat", NodeClass::concatenate, arrived, elements(x), dtype(x)));
                   }});
  return out;
}

// rand > p, times x, times 1 / (1 − p); autograd keeps the mask.
NodeId Tracer::dropout(NodeId x) {
  const NodeId drawn = add_node(
      {.op = "rand", .kind = NodeClass::random, .elements = elements(x), .dtype = dtype(x)});
  const NodeId mask = pointwise("gt", {drawn}, DType::boolean);
  const NodeId out = pointwise("mul", {pointwise("mul", {mask, x}, dtype(x))}, kNumber);
  return with_backward(out, {x}, [=, this](NodeId d) {
    const NodeId factor =
        pointwise("mul", {pointwise("convert_element_type", {mask}, dtype(x))}, kNumber);
    send(x, pointwise("clone", {pointwise("mul", {d, factor})}));
  });
}

}  // namespace plimsoll::planner::compiled
