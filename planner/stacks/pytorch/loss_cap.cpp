// Logits that are divided by a number (models/granite/modeling_granite.py), of which nothing is
// saved, or go through a soft cap: divided by it, tanh, multiplied with it (transformers
// models/gemma2/modeling_gemma2.py). Autograd saves tanh's result alone.
#include "planner/stacks/pytorch/step.h"

namespace plimsoll::planner::pytorch {

namespace {
constexpr const char *kDivided = "loss.logits.divided", *kTanh = "loss.logits.tanh",
                     *kCapped = "loss.logits.capped";
}  // namespace

TensorId StepWriter::capped(const char* name, Phase phase, TensorId from, TensorId saved) {
  const std::int64_t values = checked_multiply(tokens_.total(), d_.vocab);
  const TensorId to = b_.tensor(name, storage(Count(values), regime_.compute), Category::logits);
  b_.op(name, phase).read(from).read(saved).write(to);
  return to;
}

TensorId StepWriter::scale_logits(TensorId logits, Phase phase) {
  return capped(kDivided, phase, logits, kNoTensor);
}

TensorId StepWriter::cap_logits(TensorId logits) {
  const TensorId divided = capped(kDivided, Phase::forward, logits, kNoTensor);
  end_.logits_tanh = capped(kTanh, Phase::forward, divided, kNoTensor);
  return capped(kCapped, Phase::forward, end_.logits_tanh, kNoTensor);
}

TensorId StepWriter::cap_logits_backward(TensorId d) {
  d = capped(kCapped, Phase::backward, d, kNoTensor);
  d = capped(kTanh, Phase::backward, d, end_.logits_tanh);
  return capped(kDivided, Phase::backward, d, kNoTensor);
}

}  // namespace plimsoll::planner::pytorch
