// Linears whose products have operands of 8 bits (models/decisions/float8.h).
#include "models/decisions/float8.h"

#include "runtime/modules/linear.h"

namespace plimsoll::runtime {

Float8Cast cast_to_float8(Worker& worker, Op& op, const models::decisions::Float8Names& names,
                          ConstTensorView x, DType to, Float8Ways ways, Float8Scale scale) {
  const std::int64_t rows = x.shape[0], columns = x.shape[1];
  Float8Cast made;
  made.scale = scale.kept;
  if (!scale.kept) {
    made.own_scale = op.make(names.scale, Category::temporaries, DType::fp32, {2});
    made.scale = made.own_scale.view();
  }
  if (ways.straight)
    made.values = op.make(names.values, Category::temporaries, to, {rows, columns});
  if (ways.turned)
    made.transposed = op.make(names.transposed, Category::temporaries, to, {columns, rows});
  if (!scale.known)
    worker.kernels.float8_scale(x, to, made.scale,
                                worker.scratch(DType::fp32, {models::decisions::kFloat8Maxima}));
  worker.kernels.to_float8(x, made.scale, ways.straight ? made.values.view() : TensorView(),
                           ways.turned ? made.transposed.view() : TensorView());
  return made;
}

void Float8Cast::die_with(Op& op) {
  op.consume(std::move(values));
  op.consume(std::move(transposed));
  op.consume(std::move(own_scale));
}

Float8Scale Linear::scale8(std::int64_t first, bool backward) const {
  const TensorView& all = parameters_.float8_scales;
  check(static_cast<bool>(all), ErrorKind::internal,
        [] { return std::string("a linear in 8 bits has no place for its scales"); });
  return {{static_cast<float*>(all.data) + first, DType::fp32, {2}}, backward};
}

// A weight is read in rows of what is summed over: forward of [out, in] as it lies.
kernels::Float8Matrix Linear::weight8(Op& op, Float8Cast& made, bool backward) {
  const bool turned = parameters_.transposed != backward;
  made = cast_to_float8(worker_, op, names_.weight8, parameters_.weight.value(), DType::fp8_e4m3,
                        {.straight = !turned, .turned = turned},
                        scale8(models::decisions::kFloat8WeightScale, backward));
  return turned ? made.turned() : made.straight();
}

Float8Cast Linear::input8(Operand x, Phase phase, Float8Ways ways) {
  Op op(worker_, names_.input8.values, phase);
  Float8Cast made = cast_to_float8(worker_, op, names_.input8, x.view, DType::fp8_e4m3, ways,
                                   scale8(0, phase == Phase::backward));
  x.read_by(op);
  return made;
}

Tensor Linear::forward8(Float8Cast& x, bool last, const char* out) {
  Op op(worker_, names_.gemm);
  Tensor y = op.make(out, Category::activations, {x.values.view().shape[0], parameters_.out});
  Float8Cast made;
  const kernels::Float8Matrix weight = weight8(op, made, false);
  worker_.kernels.float8_gemm(x.straight(), weight, parameters_.bias.value(), {.fast_sums = true},
                              y.view(), gemm_panels(worker_));
  made.die_with(op);
  if (last) x.die_with(op);
  return y;
}

Float8Cast Linear::gradient8(Operand d_y, bool input) {
  const Float8Ways ways{.straight = input, .turned = parameters_.weight.trains()};
  if (!ways.straight && !ways.turned) return {};
  Op op(worker_, names_.out_grad8.values, Phase::backward);
  Float8Cast made = cast_to_float8(worker_, op, names_.out_grad8, d_y.view, DType::fp8_e5m2, ways);
  if (!parameters_.bias.trains()) d_y.read_by(op);
  return made;
}

void Linear::backward_weight8(Operand d_y, Float8Cast& d_y8, Float8Cast& x8, bool last) {
  if (!trains_own()) return;
  Op op(worker_, names_.weight_grad, Phase::backward);
  if (parameters_.weight.trains()) {
    const kernels::Float8Matrix d = d_y8.turned(), x = x8.turned();
    worker_.kernels.float8_gemm(parameters_.transposed ? x : d, parameters_.transposed ? d : x, {},
                                {.accumulate = true}, parameters_.weight.gradient(),
                                gemm_panels(worker_));
    op.consume(std::move(d_y8.transposed));
    if (!d_y8.values) op.consume(std::move(d_y8.own_scale));
    if (last) x8.die_with(op);
  }
  if (parameters_.bias.trains()) {
    backward_bias(d_y);
    d_y.read_by(op);
  }
}

void Linear::backward_input8(Float8Cast& d_y8, const char* name, Tensor& d_x) {
  Op op(worker_, names_.input_grad, Phase::backward);
  const bool first = !d_x;
  if (first)
    d_x = op.make(name, Category::temporaries, {d_y8.values.view().shape[0], parameters_.in});
  Float8Cast made;
  const kernels::Float8Matrix weight = weight8(op, made, true);
  worker_.kernels.float8_gemm(d_y8.straight(), weight, {}, {.accumulate = !first}, d_x.view(),
                              gemm_panels(worker_));
  made.die_with(op);
  op.consume(std::move(d_y8.values));
  if (!d_y8.transposed) op.consume(std::move(d_y8.own_scale));
}

}  // namespace plimsoll::runtime
