// GEMMs whose operands have 8 bits: models/decisions/float8.h.
#include "models/decisions/float8.h"

#include <algorithm>

#include "planner/stacks/plimsoll/layer_writer.h"

namespace plimsoll::planner::plimsoll_stack {

bool LayerWriter::in_float8(const GemmOp& linear) const {
  const LinearPart& part = layer_->linear(linear.module);
  return models::decisions::in_float8(regime_, part.in, part.out);
}

const GemmOp* LayerWriter::first_in_float8(const LayerOp& at) const {
  const auto found =
      std::ranges::find_if(at.gemms, [&](const GemmOp& linear) { return in_float8(linear); });
  return found == at.gemms.end() ? nullptr : &*found;
}

// What `op`, which was written last, makes of a matrix in 16 bits: read for its largest value
// unless the scale is known, and to be cast.
LayerWriter::Float8Cast LayerWriter::cast_to_float8(OpBuilder& op,
                                                    const models::decisions::Float8Names& names,
                                                    SymInt rows, SymInt columns, DType to,
                                                    bool straight, bool turned, Float8Scale scale) {
  const SymInt values = checked_multiply(rows, columns);
  const SymBytes bytes = storage(values, to);
  Float8Cast made;
  const auto make = [&](const char* name, SymBytes size) {
    return b_.tensor(name, size, Category::temporaries);
  };
  if (scale == Float8Scale::own) made.scale = make(names.scale, storage(SymInt(2), DType::fp32));
  if (straight) made.values = make(names.values, bytes);
  if (turned) made.transposed = make(names.transposed, bytes);
  op.write(made.scale).write(made.values).write(made.transposed);
  const bool known = scale == Float8Scale::known;
  b_.work().moves((known ? 1 : 2) * storage(values, regime_.compute).real() +
                      ((straight ? 1 : 0) + (turned ? 1 : 0)) * bytes.real(),
                  known ? 1 : 3);
  return made;
}

// Turned: in backward.
LayerWriter::Float8Cast LayerWriter::input8(const GemmOp& linear, ValueId x, bool turned) {
  OpBuilder made = op(linear.names.input8.values);
  read(made, x);
  return cast_to_float8(made, linear.names.input8, total_, about(x).width, DType::fp8_e4m3, !turned,
                        turned, turned ? Float8Scale::known : Float8Scale::kept);
}

// Within the op that reads it. Forward wants rows of `in`, backward rows of `out`.
void LayerWriter::weight8(const GemmOp& linear, OpBuilder& reader, bool backward) {
  const LinearPart& part = layer_->linear(linear.module);
  const bool turned = part.conv1d != backward;
  cast_to_float8(reader, linear.names.weight8, part.conv1d ? part.in : part.out,
                 part.conv1d ? part.out : part.in, DType::fp8_e4m3, !turned, turned,
                 backward ? Float8Scale::known : Float8Scale::kept);
}

void LayerWriter::forward8(const GemmOp& linear, const Float8Cast& x) {
  const LinearPart& part = layer_->linear(linear.module);
  const TensorId out = value(linear.out) = make_value(linear.out);
  OpBuilder made = op(linear.names.gemm);
  x.read_by(made);
  made.write(out);
  weight8(linear, made, false);
  gemm(total_, part.out, part.in, DType::fp8_e4m3);
}

LayerWriter::Float8Cast LayerWriter::gradient8(const GemmOp& linear, bool input) {
  const LinearPart& part = layer_->linear(linear.module);
  if (!input && !part.train_weight) return {};
  OpBuilder made = op(linear.names.out_grad8.values).read(d(linear.out));
  return cast_to_float8(made, linear.names.out_grad8, total_, part.out, DType::fp8_e5m2, input,
                        part.train_weight, Float8Scale::own);
}

void LayerWriter::weight_gradient8(const GemmOp& linear, const Float8Cast& x8,
                                   const Float8Cast& d8) {
  const LinearPart& part = layer_->linear(linear.module);
  const bool bias = part.bias && part.train_bias;
  if (!part.train_weight && !bias) return;
  OpBuilder weight = op(linear.names.weight_grad);
  if (part.train_weight)
    weight.read(x8.transposed).read(x8.scale).read(d8.transposed).read(d8.scale);
  if (bias) weight.read(d(linear.out));
  weight.update(gradients_);
  if (part.train_weight) gemm(part.in, part.out, total_, DType::fp8_e4m3);
  if (bias) b_.work().moves(bytes(part.out, regime_.compute).real());
}

void LayerWriter::input_gradient8(const GemmOp& linear, ValueId x, const Float8Cast& d8) {
  const LinearPart& part = layer_->linear(linear.module);
  if (d(x) == kNoTensor) d(x) = temporary(about(x).gradient, about(x).width);
  OpBuilder input = op(linear.names.input_grad).read(d8.values).read(d8.scale).update(d(x));
  weight8(linear, input, true);
  gemm(total_, part.in, part.out, DType::fp8_e4m3);
}

}  // namespace plimsoll::planner::plimsoll_stack
