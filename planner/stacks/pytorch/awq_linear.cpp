// AWQ's GEMM (autoawq 0.2.9, modules/linear/gemm.py; gptqmodel 7.3.4 and 7.7.0, qlinear/gemm_awq.py
// and gptqmodel_ext/awq/quantization/gemm_cuda_gen.cu): a function of its own, in fp16.
#include "planner/stacks/pytorch/adapter.h"
#include "planner/stacks/pytorch/modules.h"

namespace plimsoll::planner::pytorch {

namespace {

struct AwqRules {
  std::int64_t unpacks_from;  // tokens; fewer are multiplied with the packed weight
  std::int64_t splits;  // results in fp32 of parts of the inputs, which that product adds up
  bool batched;  // keeps the input; backward a copy of the weight for each row of the batch (bmm)
};

// Transformers before 5 has AutoAWQ's, with its Triton kernels; then gptqmodel's, of which 7.7.0
// asks for Transformers 5.20.2.
AwqRules rules_of(const models::Release& transformers) {
  if (transformers < models::Release{5, 0, 0}) return {1024, 0, true};
  return {1025, 8, transformers < models::Release{5, 20, 2}};
}

}  // namespace

void ModuleWriter::awq_forward(const LinearNames& names, const LinearPart& part, Ref input,
                               Category category, GemmSaved& s) {
  const AwqRules rules = rules_of(strategy_.transformers);
  const SymInt t = tokens_.total(), weights = checked_multiply(part.in, part.out);
  const bool unpacks = t >= rules.unpacks_from;
  s = {.input = input.delta == 0 ? input.tensor : kNoTensor};
  TensorId weight = kNoTensor;
  if (unpacks) {
    weight = temporary(names.unpacked, weights, DType::fp16);
    op(names.unpacked).write(weight);
    b_.work().moves(unpacked_bytes(part, DType::fp16));
  }
  const TensorId product = make(part.bias ? names.low : names.base.out, t * part.out, DType::fp16,
                                part.bias ? Category::temporaries : category);
  auto gemm = op(names.base.module);
  read(gemm, input).read(weight).write(product);
  b_.work().gemm(gemm_of(DType::fp16, t, part.out, part.in));
  if (unpacks)
    take_workspace(gemm, false);
  else
    gemm.scratch(bytes(t * part.out * rules.splits, DType::fp32));
  s.out = product;
  if (!part.bias) return;
  s.out = make(names.base.out, t * part.out, DType::fp16, category);
  auto last = op(names.base.out).read(product).write(s.out);
  read(last, input);  // torch.nn.Module's call holds its arguments
}

// Where the input asks for a gradient; what is recomputed has been.
Sum ModuleWriter::awq_backward(const LinearNames& names, const LinearPart& part,
                               const PackedGradient& arrives) {
  const auto [input_dtype, input_grad, d_out, sum, at] = arrives;
  const AwqRules rules = rules_of(strategy_.transformers);
  const SymInt t = tokens_.total(), weights = checked_multiply(part.in, part.out);
  const bool ends = !at.into.none();
  const TensorId weight = temporary(names.unpacked, weights, DType::fp16);
  op(names.unpacked).write(weight);
  b_.work().moves(unpacked_bytes(part, DType::fp16));
  const TensorId copies =
      rules.batched ? copy(names.base.weight_cast, weight, tokens_.sequences * weights, DType::fp16)
                    : kNoTensor;
  const TensorId d_in =
      ends ? kNoTensor : temporary(names.base.input_grad_low, t * part.in, DType::fp16);
  auto gemm = op(names.base.module).read(d_out).read(weight).read(copies).write(d_in);
  b_.work().gemm(gemm_of(DType::fp16, t, part.in, part.out));
  if (ends) write(gemm, at.into);
  take_workspace(gemm, false);
  if (rules.batched) read(gemm, at.input);
  release(gemm, at.held);
  if (ends) return add_into(names.base, d_in, false, sum, at.into);
  return add_gradient(names.base.grad_layout, sum, {d_in, !rules.batched}, input_dtype,
                      t * part.in);
}

}  // namespace plimsoll::planner::pytorch
