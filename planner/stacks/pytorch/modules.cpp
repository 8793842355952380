// Norms and linears.
#include "planner/stacks/pytorch/layer_writer.h"

namespace plimsoll::planner::pytorch {

TensorId LayerWriter::make(const char* name, std::int64_t values, DType dtype, Category category) {
  return b_.tensor(name, storage(Count(values), dtype), category);
}

// LlamaRMSNorm (transformers models/llama/modeling_llama.py): x.to(fp32), pow(2), mean, + eps,
// rsqrt, x · r, .to(input dtype), weight · that. With w = 4 bytes × values in fp32:
//   16-bit stream, recorded: x32 stays, pow(x32) dies before the product; the highest moment holds
//   x32, x32·r, its cast and the result: x32·r and the variance (4 B a row) are scratch.
//   16-bit stream, not recorded: the highest moment is x32 with pow(x32), then with x32·r.
//   fp32 stream: no casts; x itself is what autograd saves.
// The normalized values are saved for the weight's gradient only.
void LayerWriter::norm_forward(const ModuleNames& names, const NormPart& part, Ref input,
                               std::int64_t rows, std::int64_t width, bool input_grad,
                               NormSaved& s) {
  const std::int64_t n = checked_multiply(rows, width);
  s = {};
  const bool records = saves_ && (input_grad || part.trains());
  if (d_.norm == models::NormKind::layer_norm) {
    s.out = make(names.out, n, regime_.residual);
    s.statistics = make(names.statistics, 2 * rows, DType::fp32);
    read(op(names.module).write(s.out).write(s.statistics), input);
    return;
  }
  s.out = make(names.out, n, regime_.residual);
  s.statistics = make(names.statistics, rows, DType::fp32);
  s.normalized = make(names.normalized, n, regime_.residual);
  auto norm = op(names.module);
  read(norm, input).write(s.statistics).write(s.normalized).write(s.out).scratch(fp32(rows));
  if (!regime_.upcasts_norm()) return;
  s.input_fp32 = make(names.input_fp32, n, DType::fp32);
  norm.write(s.input_fp32);
  if (records && input_grad) norm.scratch(fp32(n));
}

// Backward of the above, in the order of the trace; w as above, g the incoming gradient.
//   16-bit stream: g·weight, g·normalized (→ weight.grad) | cast to fp32, two products, then the
//   gradient of the mean: expand, pow, two products. Highest at the last product, when g, the
//   normalized values and the statistics are gone: beside x32 stand one product and four
//   temporaries. The numbers beside each branch count bytes of 2- and 4-byte values, n of them.
TensorId LayerWriter::norm_backward(const ModuleNames& names, const NormPart& part, Ref input,
                                    std::int64_t rows, std::int64_t width, bool input_grad,
                                    const NormSaved& s, TensorId d_out, Ref into) {
  const std::int64_t n = checked_multiply(rows, width);
  TensorId weight_grad = kNoTensor, bias_grad = kNoTensor;
  if (part.train_weight) weight_grad = sink_->begin(names, part.width);
  if (part.bias && part.train_bias) bias_grad = sink_->begin(names, part.width);
  TensorId d_in = kNoTensor;
  if (input_grad && into.tensor == kNoTensor && into.beyond == kNoTensor)
    d_in = temporary(names.input_grad, n, regime_.residual);
  auto norm = op(names.module);
  norm.read(d_out).read(s.statistics).write(weight_grad).write(bias_grad);
  if (d_.norm == models::NormKind::layer_norm) {
    read(norm, input);
    norm.write(d_in);
    write(norm, into);
  } else if (!input_grad) {
    // Only weight.grad: g·normalized, summed.
    norm.read(s.normalized).scratch(bytes(n, regime_.residual));
  } else if (regime_.upcasts_norm()) {
    // x32 + 4 n (product) + 4·4 n − (g + normalized: 2·2 n) + result 2 n: 14 n above the operands;
    // without the normalized values 16 n.
    norm.read(s.input_fp32).write(d_in);
    write(norm, into);
    if (part.train_weight) norm.read(s.normalized);
    norm.scratch(fp32(n) * 3 + bytes(n, regime_.residual) * (part.train_weight ? 1 : 2) -
                 fp32(rows));
  } else {
    // x + 4 n (product) + 4·4 n − (g + normalized: 2·4 n), the result 4 n: 8 n above the operands.
    read(norm, input).write(d_in);
    write(norm, into);
    if (part.train_weight) norm.read(s.normalized);
    norm.scratch(fp32(n) * (part.train_weight ? 2 : 3) - fp32(rows));
  }
  if (weight_grad != kNoTensor) sink_->end(names, weight_grad);
  if (bias_grad != kNoTensor) sink_->end(names, bias_grad);
  return d_in;
}

// F.linear. Under autocast the fp32 weight is cast once per forward (autocast_mode.cpp caches casts
// of leaves that require gradients) and the fp32 input anew by every linear; autograd saves the
// casts. Without autocast it saves the input itself, and only where the weight is trained.
void LayerWriter::linear_forward(const ModuleNames& names, const LinearPart& part, Ref input,
                                 DType input_dtype, bool input_grad, Category category,
                                 LinearSaved& s) {
  const std::int64_t t = tokens_.total();
  s = {};
  if (regime_.autocast()) {
    s.weight_cast = temporary(names.weight_cast, part.in * part.out + (part.bias ? part.out : 0),
                              regime_.compute);
    op(names.weight_cast).write(s.weight_cast);
  }
  if (input_dtype != regime_.compute) {
    s.input_cast = make(names.input_cast, t * part.in, regime_.compute);
    auto cast = op(names.input_cast).write(s.input_cast);
    read(cast, input);
    input = {s.input_cast};
  }
  if (input.delta == 0) s.input = input.tensor;
  s.out = make(names.out, t * part.out, regime_.compute, category);
  auto product = op(names.module);
  read(product, input).read(s.weight_cast).write(s.out);
  (void)input_grad;
}

// The weight's gradient is made before the input's; under autocast both are then cast, the input's
// first (its cast is the younger node), and the 16-bit ones die.
TensorId LayerWriter::linear_backward(const ModuleNames& names, const LinearPart& part,
                                      DType input_dtype, bool input_grad, const LinearSaved& s,
                                      TensorId d_out, TensorId also_release) {
  const std::int64_t t = tokens_.total();
  const bool weight = part.train_weight;
  const bool casts = regime_.autocast();
  TensorId low_weight = kNoTensor, grad = kNoTensor, bias_grad = kNoTensor;
  if (weight && casts)
    low_weight = temporary(names.weight_grad_low, part.in * part.out, regime_.compute);
  else if (weight)
    grad = sink_->begin(names, part.in * part.out);
  if (part.bias && part.train_bias) bias_grad = sink_->begin(names, part.out);
  const bool cast_input = input_grad && input_dtype != regime_.compute;
  TensorId d_in = kNoTensor;
  if (input_grad)
    d_in = temporary(cast_input ? names.input_grad_low : names.input_grad, t * part.in,
                     regime_.compute);
  auto product = op(names.module);
  product.read(d_out)
      .read(s.weight_cast)
      .write(low_weight)
      .write(grad)
      .write(bias_grad)
      .write(d_in);
  if (weight) product.read(s.input);
  product.release(also_release);
  if (grad != kNoTensor) sink_->end(names, grad);
  if (cast_input) {
    const TensorId wide = temporary(names.input_grad, t * part.in, input_dtype);
    op(names.input_grad).read(d_in).write(wide);
    d_in = wide;
  }
  if (low_weight != kNoTensor) {
    grad = sink_->begin(names, part.in * part.out);
    op(names.weight_grad).read(low_weight).write(grad);
    sink_->end(names, grad);
  }
  if (bias_grad != kNoTensor) sink_->end(names, bias_grad);
  return d_in;
}

}  // namespace plimsoll::planner::pytorch
