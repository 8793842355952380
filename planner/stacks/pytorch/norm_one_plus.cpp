// Gemma's RMSNorm: (x·r · (1 + weight)).to(input dtype), in fp32.
#include "planner/kernels_of_op.h"
#include "planner/stacks/pytorch/modules.h"

namespace plimsoll::planner::pytorch {

// transformers models/gemma2/modeling_gemma2.py, Gemma2RMSNorm: x32 = x.float(), pow(2), mean,
// + eps, rsqrt, x32 · r; weight.float(), 1 + that; their product, and its cast. An fp32 input (or
// weight) is cast to nothing. Nobody holds the mean. Saved: x32, r and 1 + weight for the input's
// gradient, x32 · r for the weight's; what is not saved dies with its last reader. A recomputation
// that stops here ends with 1 + weight.
void ModuleWriter::one_plus_norm_forward(const ModuleNames& names, const NormPart& part, Ref input,
                                         const NormInput& x, NormSaved& s, bool stops) {
  const std::int64_t n = checked_multiply(x.rows, part.width);
  const bool keeps = saves_ && x.grad, keeps_normalized = saves_ && part.train_weight;
  const bool casts = x.dtype != DType::fp32;
  const Bytes f = fp32(n), r = fp32(x.rows), w = fp32(part.width);
  if (keeps) {
    if (casts) s.input_fp32 = make(names.input_fp32, n, DType::fp32);
    s.statistics = make(names.statistics, x.rows, DType::fp32);
    s.weight_cast = make(names.weight_cast, part.width, DType::fp32);
  }
  if (keeps_normalized) s.normalized = make(names.normalized, n, DType::fp32);
  if (!stops) s.out = make(names.out, n, x.dtype);
  auto norm = op(names.module);
  read(norm, input).write(s.input_fp32).write(s.statistics).write(s.normalized);
  norm.write(s.weight_cast).write(s.out);
  KernelsOfOp kernels(b_);
  const auto made = [&](TensorId tensor, Bytes bytes) {  // its number where it is not saved
    if (tensor == kNoTensor) return kernels.take(bytes);
    kernels.birth(tensor, bytes);
    return -1;
  };
  const auto done = [&](std::int32_t block) {
    if (block >= 0) kernels.drop(block);
  };
  const std::int32_t wide = casts ? made(s.input_fp32, f) : -1;
  const auto squares = kernels.take(f), mean = kernels.take(r);
  kernels.drop(squares);
  const auto with_epsilon = kernels.take(r);
  kernels.drop(mean);
  const std::int32_t root = made(s.statistics, r);
  kernels.drop(with_epsilon);
  const std::int32_t normalized = made(s.normalized, f);
  done(wide);
  done(root);
  const std::int32_t low_weight = regime_.weight != DType::fp32 ? kernels.take(w) : -1;
  const std::int32_t one_plus = made(s.weight_cast, w);
  done(low_weight);
  if (!stops) {
    const std::int32_t product = casts ? kernels.take(f) : made(s.out, f);
    done(normalized);
    done(one_plus);
    if (casts) kernels.birth(s.out, bytes(n, x.dtype));
    done(product);
  }
  kernels.finish(norm);
}

}  // namespace plimsoll::planner::pytorch
