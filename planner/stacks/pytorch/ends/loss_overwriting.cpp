// Cross entropies whose kernel writes the gradient over the logits.
#include "planner/stacks/pytorch/ends/head.h"

namespace plimsoll::planner::pytorch {

using CrossEntropy = KernelPatch::CrossEntropy;

bool HeadWriter::overwrites_logits() const {
  return regime_.patch.cross_entropy != CrossEntropy::eager;
}

// Liger's (liger_kernel 0.8.5, ops/cross_entropy.py) does so forward, and asks the labels first
// which of them count, and whether they are in the vocabulary. That of fms-acceleration
// (kernels/unsloth/cross_entropy_loss.py) does so backward, and keeps the logarithm of each row's
// sum; rows of more than 65536 values are summed in parts, and torch.logsumexp adds those up:
// beside them it makes their maxima and exp(part - maximum) (aten/src/ATen/native/ReduceOps.cpp,
// logsumexp_out_impl).
void HeadWriter::overwriting_cross_entropy(TensorId logits) {
  constexpr std::int64_t kPart = 65536;
  const bool liger = regime_.patch.cross_entropy == CrossEntropy::liger;
  const SymInt t = scored_tokens();
  const auto tensor = [&](const char* name, DType dtype) {
    return b_.tensor(name, storage(t, dtype), Category::activations);
  };
  const TensorId losses = tensor("loss.by_token", DType::fp32);
  const TensorId beside =
      liger ? tensor("loss.mask", DType::boolean) : tensor("loss.logsumexp", DType::fp32);
  SymBytes most =
      liger ? layer_.bytes(t, DType::int64) + layer_.bytes(1, DType::int64) : SymBytes();
  const SymInt parts = ceil_divide(d_.vocab, kPart);
  if (!liger && parts > 1) most = layer_.fp32(checked_multiply(t, parts)) * 2 + layer_.fp32(t);
  auto op = b_.op("loss.cross_entropy", Phase::forward);
  op.read(s_.end.targets).write(losses).write(beside).scratch(most);
  const double bytes = layer_.fp32(checked_multiply(t, d_.vocab)).real();
  if (liger)
    op.update(logits);
  else
    op.read(logits);
  b_.work().moves((liger ? 3 : 1) * bytes);
  s_.end.log_probabilities = liger ? kNoTensor : beside;
  s_.end.loss = b_.tensor("loss", Bytes(4), Category::activations);
  // fms-acceleration's counts the labels that are not -100: torch.count_nonzero of a mask, which
  // makes whole numbers of it.
  b_.op("loss", Phase::forward)
      .read(losses)
      .read(beside)
      .read(s_.end.targets)
      .write(s_.end.loss)
      .scratch(liger ? SymBytes()
                     : layer_.bytes(t, DType::boolean) + layer_.bytes(t, DType::int64));
}

TensorId HeadWriter::overwriting_cross_entropy_backward() {
  const TensorId kept =
      s_.end.shifted_logits != kNoTensor ? s_.end.shifted_logits : s_.end.upcast_logits;
  b_.op("loss.cross_entropy", Phase::backward)
      .read(s_.end.seed)
      .read(s_.end.log_probabilities)
      .read(regime_.patch.cross_entropy == CrossEntropy::fms ? s_.end.targets : kNoTensor)
      .update(kept);
  if (regime_.patch.cross_entropy == CrossEntropy::liger)
    b_.work().moves(0, 1);  // torch.equal(grad_output, 1): left as they are
  return kept;
}

}  // namespace plimsoll::planner::pytorch
