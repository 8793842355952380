// GEMMs, attention and complex numbers in a joint graph: what no kernel fuses over.
#include "planner/stacks/pytorch/compiled/tracer.h"

namespace plimsoll::planner::compiled {

// F.linear: mm(x, tᵀ), with a bias addmm. Backward d · t and dᵀ · x.
NodeId Tracer::gemm(NodeId x, NodeId weight, NodeId bias, std::int64_t rows, bool transposes) {
  const std::int64_t in = elements(x) / rows, out = elements(weight) / in;
  const NodeId w = transposes ? view(weight, View::transposed) : weight;
  const NodeId flat = view(x, View::rows);
  const bool adds = bias != kNoNode;
  if (keeps_gemm_ && !adds && keeps_gemm_()) policy_ = Policy::save;
  const NodeId made =
      adds ? node("addmm", NodeClass::opaque, {bias, flat, w}, rows * out, dtype(flat))
           : node("mm", NodeClass::opaque, {flat, w}, rows * out, dtype(flat));
  if (policy_ == Policy::save) policy_ = Policy::recompute;
  with_backward(made, {flat, w, bias}, [=, this](NodeId d) {
    const NodeId d_flat =
        grad(flat) ? node("mm", NodeClass::opaque,
                          {d, node("view", NodeClass::view, {w}, elements(w), dtype(w), 1000)},
                          elements(flat), dtype(d))
                   : kNoNode;
    if (grad(w)) {
      const NodeId turned = node("view", NodeClass::view, {d}, elements(d), dtype(d), 1001);
      send(w, node("mm", NodeClass::opaque, {turned, flat}, elements(w), dtype(d)));
    }
    if (adds && grad(bias)) send(bias, reduced(d, elements(bias)));
    if (d_flat != kNoNode) send(flat, d_flat);
  });
  return view(made, View::sequence);
}

// One kernel with several results: the output, statistics of rows, the generator's seed and offset.
NodeId Tracer::attention(const Attention& of) {
  // uint64; flash_attn's has two.
  const std::int64_t seed = std::string_view(of.op).find("flash") == std::string_view::npos ? 1 : 2;
  const std::int64_t offset = 1;
  const std::int64_t out = elements(of.q);
  JointNode made{.op = of.op,
                 .kind = NodeClass::tuple,
                 .in = {of.q, of.k, of.v},
                 .elements = out,
                 .dtype = dtype(of.q)};
  made.bytes = storage(Count(out), dtype(of.q)).value() + 4 * of.statistics + 8 * (seed + offset);
  if (keeps_attention_) made.policy = Policy::save;
  const NodeId kernel = add_node(std::move(made));
  const Policy before = policy_;
  if (keeps_attention_) policy_ = Policy::save;
  const auto part = [&](std::int64_t size, DType type, std::int32_t which) {
    return node("getitem", NodeClass::element, {kernel}, size, type, which);
  };
  const NodeId result = part(out, dtype(of.q), 0);
  const NodeId statistics = part(of.statistics, DType::fp32, 1);
  const NodeId seeds = part(2 * seed, DType::fp32, 6), offsets = part(2 * offset, DType::fp32, 7);
  policy_ = before;
  return with_backward(result, {of.q, of.k, of.v}, [=, this](NodeId d) {
    const NodeId alias = node("alias", NodeClass::view, {result}, out, dtype(result), 1);
    const NodeId back =
        node("attention_backward", NodeClass::tuple,
             {d, of.q, of.k, of.v, alias, statistics, seeds, offsets}, out, dtype(result));
    std::int32_t which = 0;
    for (const NodeId to : {of.q, of.k, of.v})
      send(to, node("getitem", NodeClass::element, {back}, elements(to), dtype(to), which++));
  });
}

// view_as_real(view_as_complex(x) · table): a complex number is counted as two floats.
NodeId Tracer::complex(NodeId x, NodeId table) {
  const std::int64_t n = elements(x);
  const NodeId a = node("view_as_complex", NodeClass::opaque, {x}, n, DType::fp32);
  const NodeId turned = pointwise("mul", {a, table}, DType::fp32);
  const NodeId out = node("view_as_real", NodeClass::opaque, {turned}, n, DType::fp32);
  return with_backward(out, {x}, [=, this](NodeId d) {
    const NodeId c = node("view_as_complex", NodeClass::opaque, {d}, n, DType::fp32);
    const NodeId conjugate =
        node("_conj", NodeClass::opaque, {table}, elements(table), DType::fp32);
    const NodeId back = node("mul", NodeClass::fusible, {c, conjugate}, n, DType::fp32);
    send(x, node("view_as_real", NodeClass::opaque, {back}, n, DType::fp32));
  });
}

JointGraph Tracer::finish(NodeId result) {
  backward_ = true;
  graph_.results = {result};
  const NodeId tangent = add_node({.op = "tangent",
                                   .kind = NodeClass::tangent,
                                   .in = {},
                                   .elements = elements(result),
                                   .dtype = dtype(result)});
  gradients_[static_cast<std::size_t>(result)] = tangent;
  for (std::size_t i = tape_.size(); i-- > 0;) {
    const NodeId d = gradients_[static_cast<std::size_t>(tape_[i].out)];
    if (d != kNoNode) tape_[i].run(d);
  }
  JointNode output{.op = "output", .kind = NodeClass::output, .in = {result}};
  for (const NodeId id : inputs_) {
    const NodeId gradient = grad(id) ? gradients_[static_cast<std::size_t>(id)] : kNoNode;
    graph_.gradients.push_back(gradient);
    if (gradient != kNoNode) output.in.push_back(gradient);
  }
  add_node(std::move(output));
  return std::move(graph_);
}

}  // namespace plimsoll::planner::compiled
