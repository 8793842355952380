// RMSNorm as Transformers writes it in Python, and torch's LayerNorm.
#include <algorithm>

#include "planner/stacks/pytorch/block_plan.h"
#include "planner/stacks/pytorch/modules.h"

namespace plimsoll::planner::pytorch {

using models::NormKind;

DType ModuleWriter::norm_out(DType input_dtype) const {
  return norm_dtype(d_.norm, input_dtype, regime_);
}

// LlamaRMSNorm (transformers models/llama/modeling_llama.py): x.to(fp32), pow(2), mean, + eps,
// rsqrt, x · r, .to(input dtype), weight · that. Bytes of the values: F in fp32, S in the input's
// dtype, O in the result's; R a row's scalar.
//   16-bit input: x32, pow F, mean R; pow dies; r R; x·r F, its cast S, the result O. Saved: x32
//   and r for the input's gradient, the cast for the weight's. Highest with x32 saved: at the
//   result, F + 2 R + F + S + O. Else x32 and r die at x·r: 2 F + 2 R there, F + R + S + O later.
//   fp32 input: no casts, x itself is saved. Highest at the result: 2 R + 2 F, or R + 2 F.
// Olmo2RMSNorm (models/olmo2/modeling_olmo2.py): (weight · x·r).to(input dtype).
//   16-bit input: x·r F is saved as it is; the product F, its cast S. Highest with x32 saved: at
//   the cast, 3 F + 2 R + S. Else x32 and r are gone by then: 2 F + R + S, which is no less than
//   the 2 F + 2 R at x·r, and no more than the four tensors. fp32 input: as above. A recomputation
//   that stops here ends before the product: at x·r, 2 F + 2 R (fp32 input: F + 2 R).
void ModuleWriter::norm_forward(const ModuleNames& names, const NormPart& part, Ref input,
                                const NormInput& x, NormSaved& s, bool stops, Ref into) {
  s = {};
  if (part.kind == NormKind::layer_norm) return layer_norm_forward(names, part, input, x, s, into);
  check(into.none(), ErrorKind::internal, "a layer ends with an RMS norm");
  if (part.kind == NormKind::rms_norm_one_plus)
    return one_plus_norm_forward(names, part, input, x, s, stops);
  const std::int64_t n = checked_multiply(x.rows, part.width);
  const DType out = norm_dtype(part.kind, x.dtype, regime_);
  const bool in_fp32 = multiplies_in_fp32(part.kind);
  const bool keeps = saves_ && x.grad;
  if (!stops) s.out = make(names.out, n, out);
  s.statistics = make(names.statistics, x.rows, DType::fp32);
  s.normalized = make(names.normalized, n, in_fp32 ? DType::fp32 : x.dtype);
  auto norm = op(names.module);
  read(norm, input).write(s.statistics).write(s.normalized).write(s.out);
  const Bytes wide = fp32(n) + fp32(x.rows);
  if (x.dtype == DType::fp32) {
    if (keeps) norm.scratch(fp32(x.rows));
  } else {
    s.input_fp32 = make(names.input_fp32, n, DType::fp32);
    norm.write(s.input_fp32);
    const Bytes narrow = bytes(n, x.dtype) + bytes(n, out);
    if (in_fp32)
      norm.scratch(stops ? fp32(x.rows) : keeps ? wide : Bytes(0));
    else
      norm.scratch(keeps ? wide : std::max(wide, narrow) - narrow);
  }
  if (b_.keeps_blocks()) b_.blocks(norm_blocks(part, s, x));
}

// The same, block by block.
BlockEvents ModuleWriter::norm_blocks(const NormPart& part, const NormSaved& s,
                                      const NormInput& x) const {
  const bool casts = s.input_fp32 != kNoTensor, in_fp32 = multiplies_in_fp32(part.kind);
  const std::int64_t values = checked_multiply(x.rows, part.width);
  BlockEvents events;
  events.birth(s.input_fp32);
  const auto squares = events.take(fp32(values));
  const auto mean = events.take(fp32(x.rows));
  events.drop(squares);
  const auto with_epsilon = events.take(fp32(x.rows));
  events.birth(s.statistics);
  events.drop(with_epsilon);
  auto product = casts && !in_fp32 ? events.take(fp32(values)) : -1;
  if (in_fp32) events.birth(s.normalized);
  events.death(s.input_fp32);
  if (casts) events.death(s.statistics);
  if (!in_fp32) events.birth(s.normalized);
  if (in_fp32 && casts && s.out != kNoTensor) product = events.take(fp32(values));
  events.birth(s.out);
  events.drop(mean);
  if (product >= 0) events.drop(product);
  return events;
}

NormBytes ModuleWriter::norm_bytes(const NormPart& part, const NormInput& x) const {
  const bool in_fp32 = multiplies_in_fp32(part.kind);
  const std::int64_t n = checked_multiply(x.rows, part.width);
  const DType grad = in_fp32 ? DType::fp32 : norm_dtype(part.kind, x.dtype, regime_);
  const bool trains = part.train_weight;
  return {.fp32 = fp32(n),
          .input = bytes(n, x.dtype),
          .grad = bytes(n, grad),
          .normalized = trains ? bytes(n, in_fp32 ? DType::fp32 : x.dtype) : Bytes(0),
          .rows = fp32(x.rows),
          .sum = trains ? bytes(part.width, in_fp32 ? DType::fp32 : regime_.weight) : Bytes(0),
          .sum_scratch = trains ? column_sum(x.rows, part.width) : Bytes(0)};
}

// Backward of the above, in the order of the trace; g is the incoming gradient, D what flows past,
// to which autograd adds the norm's gradient in place: D becomes the result.
//   g·weight O and g·normalized O (summed to weight.grad G) stand beside g, the normalized values
//   and x: H1. Then, in fp32, two products and their row sums, of which one product stays (with an
//   fp32 input it is added to D at once): H2. Then the mean's gradient: expanded, pow, twice
//   multiplied: four beside x and the first product or D: H3. At last the sum, or its cast to S.
// Where the weight is multiplied in fp32, g is cast to it before anything that was saved is read, O
// and the normalized values are F, and the sum is cast to G, which is less than g·normalized.
TensorId ModuleWriter::norm_backward(const ModuleNames& names, const NormPart& part,
                                     const NormInput& x, const NormSaved& s, TensorId d_out,
                                     TensorId residual, const Place& at) {
  const std::int64_t n = checked_multiply(x.rows, part.width);
  if (multiplies_in_fp32(part.kind))
    d_out = cast(names.out_grad_fp32, d_out, n, x.dtype, DType::fp32);
  unpack();
  if (part.kind == NormKind::layer_norm)
    return layer_norm_backward(names, part, x, s, d_out, residual, at);
  TensorId weight_grad = kNoTensor, d_in = kNoTensor;
  if (part.train_weight) weight_grad = sink_->begin(names, part.width);
  if (x.grad && at.into.none()) d_in = temporary(names.input_grad, n, x.dtype);
  auto norm = op(names.module);
  norm.read(d_out).write(weight_grad);
  release(norm, at.held);
  if (part.train_weight) norm.read(s.normalized);
  const NormBytes of = norm_bytes(part, x);
  if (!x.grad) {
    norm.scratch(of.grad + of.sum_scratch);  // g·normalized only
  } else {
    const Bytes f = of.fp32, r = of.rows, none(0);
    const bool wide = x.dtype == DType::fp32;
    const Bytes g = part.train_weight ? bytes(part.width, regime_.weight) : none;
    const Bytes past = residual != kNoTensor ? of.input : none;
    const Bytes one_plus =
        part.kind == NormKind::rms_norm_one_plus ? fp32(part.width) : none;  // gone before H2
    // In a checkpoint the normalized values are gone before the sum is made.
    const Bytes sum = of.sum + of.sum_scratch - (checkpointed_ ? of.normalized : none);
    const Bytes h1 = of.grad * (part.train_weight ? 3 : 2) + of.normalized + f + past + r +
                     one_plus + std::max(none, sum);
    const Bytes kept = sink_->keeps() ? g : none;
    const Bytes h2 = f * 4 + r * 2 + past + kept;
    const Bytes h3 = f * (wide && past > none ? 5 : 6) + past + kept;
    const Bytes operands = of.grad + of.normalized + f + r + g + past + of.input + one_plus;
    norm.scratch(std::max({h1, h2, h3, operands}) - operands);
    norm.read(s.statistics).read(s.weight_cast).read(residual).write(d_in);
    write(norm, at.into);
    if (wide)
      read(norm, at.input);
    else
      norm.read(s.input_fp32);
    if (b_.keeps_blocks())
      b_.blocks(norm_backward_blocks(
          s, of, {d_out, weight_grad, residual, d_in, at.into.tensor, at.into.beyond},
          multiplies_in_fp32(part.kind), wide));
  }
  if (weight_grad != kNoTensor) sink_->end(names, weight_grad);
  return d_in;
}

// The same, block by block, in the order of the trace.
BlockEvents ModuleWriter::norm_backward_blocks(const NormSaved& s, const NormBytes& bytes,
                                               const NormGradients& of, bool in_fp32,
                                               bool wide) const {
  BlockEvents events;
  auto d_normalized = events.take(bytes.grad);  // g · weight
  if (of.weight != kNoTensor) {
    const auto product = events.take(bytes.grad);  // g · normalized
    if (checkpointed_) events.death(s.normalized);
    const bool casts = in_fp32 && regime_.weight != DType::fp32;
    const auto sum = casts ? events.take(bytes.sum) : -1;
    if (!casts) events.birth(of.weight);
    if (bytes.sum_scratch > Bytes(0)) events.drop(events.take(bytes.sum_scratch));
    events.drop(product);
    if (casts) events.birth(of.weight);
    if (casts) events.drop(sum);
    if (!checkpointed_) events.death(s.normalized);
  }
  events.death(s.weight_cast);
  events.death(of.out);
  if (!wide && !in_fp32) {
    const auto cast = events.take(bytes.fp32);
    events.drop(d_normalized);
    d_normalized = cast;
  }
  const auto of_root = events.take(bytes.fp32);
  auto d_input = events.take(bytes.fp32);
  const auto d_root = events.take(bytes.rows);
  events.drop(d_normalized);
  events.drop(of_root);
  if (wide && of.residual != kNoTensor) {
    const auto sum = events.take(bytes.fp32);
    events.death(of.residual);
    events.drop(d_input);
    d_input = sum;
  }
  const auto cube = events.take(bytes.rows), scaled = events.take(bytes.rows);
  const auto d_mean = events.take(bytes.rows);
  events.death(s.statistics);
  for (const auto row : {d_root, cube, scaled}) events.drop(row);
  const auto expanded = events.take(bytes.fp32);
  events.drop(d_mean);
  const auto power = events.take(bytes.fp32), twice = events.take(bytes.fp32);
  const auto d_square = events.take(bytes.fp32);
  events.death(s.input_fp32);
  for (const auto done : {expanded, power, twice}) events.drop(done);
  const auto sum = wide ? -1 : events.take(bytes.fp32);
  if (!wide) events.drop(d_input);
  if (!wide) events.drop(d_square);
  const bool adds = !wide && of.residual != kNoTensor;
  const auto narrow = adds ? events.take(bytes.input) : -1;
  if (adds) events.drop(sum);
  for (const TensorId result : {of.input, of.into, of.beyond}) events.birth(result);
  if (wide) events.drop(d_input);
  if (wide) events.drop(d_square);
  if (adds) events.drop(narrow);
  return events;
}

// torch.nn.LayerNorm saves its input, mean and 1/std. Under autocast it runs in fp32: casts of
// 16-bit weight, bias and input are saved instead.
void ModuleWriter::layer_norm_forward(const ModuleNames& names, const NormPart& part, Ref input,
                                      const NormInput& x, NormSaved& s, Ref into) {
  const std::int64_t n = checked_multiply(x.rows, part.width);
  const bool grad = saves_ && (x.grad || part.trains());
  if (into.none()) s.out = make(names.out, n, norm_dtype(part.kind, x.dtype, regime_));
  s.statistics = b_.tensor(names.statistics, fp32(x.rows) * 2, Category::activations);
  auto norm = op(names.module);
  if (regime_.autocast && regime_.weight != DType::fp32) {
    s.weight_cast =
        b_.tensor(names.weight_cast, fp32(part.width) * (part.bias ? 2 : 1), Category::temporaries);
    norm.write(s.weight_cast);
  }
  if (regime_.autocast && x.dtype != DType::fp32) {
    s.input_fp32 = make(names.input_fp32, n, DType::fp32,
                        grad ? Category::activations : Category::temporaries);
    norm.write(s.input_fp32);
  }
  write(read(norm, input), into).write(s.out).write(s.statistics);
}

// Its gradient is added in place to what flows past, once it has the input's dtype.
TensorId ModuleWriter::layer_norm_backward(const ModuleNames& names, const NormPart& part,
                                           const NormInput& x, const NormSaved& s, TensorId d_out,
                                           TensorId residual, const Place& at) {
  const std::int64_t n = checked_multiply(x.rows, part.width);
  const bool casts = x.grad && s.input_fp32 != kNoTensor;
  std::array<TensorId, 2> low{kNoTensor, kNoTensor}, grads{kNoTensor, kNoTensor};
  const std::array<bool, 2> trains{part.train_weight, part.bias && part.train_bias};
  for (std::size_t i = 0; i < 2; ++i) {
    if (!trains[i]) continue;
    if (s.weight_cast != kNoTensor)
      low[i] = temporary(names.weight_grad_low, part.width, DType::fp32);
    else
      grads[i] = sink_->begin(names, part.width);
  }
  TensorId d_in = kNoTensor;
  if (x.grad && at.into.none()) d_in = temporary(names.input_grad, n, x.dtype);
  const TensorId wide = casts ? temporary(names.input_grad_low, n, DType::fp32) : kNoTensor;
  auto norm = op(names.module);
  norm.read(d_out).read(s.statistics).read(s.weight_cast).write(wide);
  for (std::size_t i = 0; i < 2; ++i) norm.write(low[i]).write(grads[i]);
  if (s.input_fp32 != kNoTensor)
    norm.read(s.input_fp32);
  else
    read(norm, at.input);
  release(norm, at.held);
  if (x.grad) {
    auto last = casts ? op(names.input_grad) : norm;
    last.read(wide).read(residual).write(d_in);
    write(last, at.into);
  }
  for (std::size_t i = 0; i < 2; ++i) {
    if (low[i] != kNoTensor) {
      grads[i] = sink_->begin(names, part.width);
      op(names.weight_grad).read(low[i]).write(grads[i]);
    }
    if (grads[i] != kNoTensor) sink_->end(names, grads[i]);
  }
  return d_in;
}

}  // namespace plimsoll::planner::pytorch
