// torchao's Float8Linear in a joint graph (torchao 0.18, float8_linear.py): what AOTAutograd traces
// of matmul_with_hp_or_float8_args and of the tensors that are float8 inside it.
#include "planner/stacks/pytorch/compiled/tracer.h"

namespace plimsoll::planner::compiled {

namespace {
constexpr std::int32_t kNumber = 7;  // a factor or a bound that is no tensor
constexpr std::int32_t kRows = 1010, kTurned = 1011, kAgain = 1012, kTurnedAgain = 1013;
}  // namespace

// amax_to_scale and to_fp8_saturated. torchtitan's policy of December 2024 keeps what abs and max
// make.
Tracer::Float8 Tracer::float8(NodeId x, DType to) {
  const auto cast_to = [this](NodeId of, DType dtype) {
    return pointwise("convert_element_type", {of}, dtype, static_cast<std::int32_t>(dtype));
  };
  const auto clamp = [this](const char* op, NodeId of) { return pointwise(op, {of}, kNumber); };
  const Policy before = policy_;
  if (keeps_gemm_) policy_ = Policy::save;
  const NodeId largest = node("max", NodeClass::fusible, {pointwise("abs", {x})}, 1, dtype(x));
  policy_ = before;
  const NodeId inverse =
      pointwise("reciprocal", {clamp("clamp_min", cast_to(largest, DType::fp64))});
  const NodeId scale =
      cast_to(pointwise("mul", {inverse}, DType::fp64, static_cast<int>(to)), DType::fp32);
  const NodeId wide = dtype(x) == DType::fp32 ? x : cast_to(x, DType::fp32);
  const NodeId scaled = pointwise("mul", {wide, scale}, static_cast<int>(to));
  const NodeId bounded = clamp("clamp_max", clamp("clamp_min", scaled));
  return {cast_to(bounded, to), scale};
}

NodeId Tracer::float8_gemm(NodeId x, NodeId weight, NodeId scale, std::int64_t rows) {
  const std::int64_t in = elements(x) / rows, out = elements(weight) / in;
  const DType own = dtype(x);
  const auto turn = [this](NodeId of, std::int32_t how) {
    return node("permute", NodeClass::view, {of}, elements(of), dtype(of), how);
  };
  const NodeId w = view(weight, View::transposed);
  const Float8 a = float8(x, DType::fp8_e4m3);
  const Float8 b = scale != kNoNode ? Float8{w, scale} : float8(w, DType::fp8_e4m3);
  const NodeId flat =
      node("view", NodeClass::view, {a.values}, elements(x), DType::fp8_e4m3, kRows);
  const Policy before = policy_;
  if (keeps_gemm_ && keeps_gemm_()) policy_ = Policy::save;
  const NodeId inverse_a = pointwise("reciprocal", {a.scale});
  const NodeId inverse_b = pointwise("reciprocal", {b.scale});
  const NodeId made = node("_scaled_mm", NodeClass::opaque, {flat, b.values, inverse_a, inverse_b},
                           rows * out, own);
  policy_ = before;
  const NodeId result = node("view", NodeClass::view, {made}, rows * out, own,
                             static_cast<std::int32_t>(View::sequence));
  return with_backward(result, {x, w}, [=, this](NodeId d) {
    const NodeId d_flat = node("view", NodeClass::view, {d}, elements(d), dtype(d), kRows);
    const Float8 g = float8(d_flat, DType::fp8_e5m2);
    // The weight by columns for the input's gradient: a copy.
    const auto by_columns = [&](NodeId of) {
      return turn(pointwise("clone", {turn(turn(of, kTurned), kTurnedAgain)}), kAgain);
    };
    const NodeId columns = by_columns(b.values);
    const NodeId inverse_g = pointwise("reciprocal", {g.scale});
    const NodeId d_x = node("_scaled_mm", NodeClass::opaque,
                            {g.values, columns, inverse_g, inverse_b}, rows * in, own);
    const NodeId back = node("view", NodeClass::view, {d_x}, rows * in, own,
                             static_cast<std::int32_t>(View::sequence));
    const Float8 again =
        float8(node("view", NodeClass::view, {x}, elements(x), own, kRows), DType::fp8_e4m3);
    const NodeId d_rows = pointwise("clone", {turn(g.values, kTurned)});
    const NodeId x_columns = turn(pointwise("clone", {turn(again.values, kTurned)}), kAgain);
    const NodeId inverse_x = pointwise("reciprocal", {again.scale});
    const NodeId d_w = node("_scaled_mm", NodeClass::opaque,
                            {d_rows, x_columns, inverse_g, inverse_x}, in * out, own);
    const NodeId turned = turn(d_w, kTurned);
    send(x, back);
    send(w, turned);
  });
}

}  // namespace plimsoll::planner::compiled
