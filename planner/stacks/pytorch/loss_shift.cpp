// The loss of Transformers before 4.49: the logits are shifted, where newer ones pad the labels.
#include "planner/stacks/pytorch/step.h"

namespace plimsoll::planner::pytorch {

bool StepWriter::shifts_logits() const {
  const bool fms = regime_.patch.cross_entropy == KernelPatch::CrossEntropy::fms;  // its own loss
  return strategy_.loss == models::Loss::full &&
         (fms || strategy_.transformers < models::kLossPadsLabels);
}

// Every sequence's last token has nothing to predict.
std::int64_t StepWriter::scored_tokens() const {
  return shifts_logits() ? checked_multiply(tokens_.sequences, tokens_.length - 1)
                         : tokens_.total();
}

// logits[..., :-1, :].contiguous(), labels[..., 1:].contiguous(): copies of several sequences,
// views of one. Python holds them until the loss is returned.
TensorId StepWriter::shift_logits(TensorId logits) {
  end_.targets = kNoTensor;
  if (tokens_.sequences == 1) return logits;
  const std::int64_t scored = scored_tokens();
  end_.shifted_logits =
      b_.tensor("loss.logits.shifted",
                storage(Count(checked_multiply(scored, d_.vocab)), DType::fp32), Category::logits);
  b_.op("loss.logits.shifted", Phase::forward).read(logits).write(end_.shifted_logits);
  end_.targets =
      b_.tensor("loss.labels.shifted", Bytes(checked_multiply(8, scored)), Category::activations);
  b_.op("loss.labels", Phase::forward).write(end_.targets);
  return end_.shifted_logits;
}

// slice_backward: zeros for all tokens, and the gradient copied into them.
TensorId StepWriter::shift_logits_backward(TensorId d_shifted) {
  const TensorId whole = b_.tensor(
      "loss.logits.grad.fp32",
      storage(Count(checked_multiply(tokens_.total(), d_.vocab)), DType::fp32), Category::logits);
  b_.op("loss.logits.shifted", Phase::backward).read(d_shifted).write(whole);
  return whole;
}

}  // namespace plimsoll::planner::pytorch
