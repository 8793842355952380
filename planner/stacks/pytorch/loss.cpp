// The head, the loss, and their backward.
#include "planner/stacks/pytorch/step.h"

namespace plimsoll::planner::pytorch {

using models::Access;
using models::kNoGroup;
using models::Loss;

namespace {
const LinearNames& kHead = end_names().head;
const ModuleNames& kFinalNorm = end_names().norm;
}  // namespace

// Labels padded by one, then cut: a view of one sequence, a copy of several.
void StepWriter::loss_targets() {
  const std::int64_t batch = tokens_.sequences;
  padded_labels_ =
      b_.tensor("loss.labels.padded", Bytes(checked_multiply(8, batch * (tokens_.length + 1))),
                Category::activations);
  b_.op("loss.labels", Phase::forward).write(padded_labels_);
  targets_ = padded_labels_;
  if (batch > 1) {
    targets_ = b_.tensor("loss.labels.shifted", Bytes(checked_multiply(8, tokens_.total())),
                         Category::activations);
    b_.op("loss.labels", Phase::forward).read(padded_labels_).write(targets_);
  }
}

// nn.Linear, then ForCausalLMLoss (transformers loss/loss_utils.py): logits.float(), cross_entropy
// = log_softmax + nll_loss. Older ones upcast in the model (logits = logits.float()), which drops
// the low logits at once.
void StepWriter::full_loss_forward() {
  const std::int64_t v = checked_multiply(tokens_.total(), d_.vocab);
  layer_.linear_forward(kHead, parts_.head, {final_norm_.out}, layer_.norm_out(regime_.residual),
                        Category::logits, head_);
  const auto logits = [&](const char* name, DType dtype) {
    return b_.tensor(name, storage(Count(v), dtype), Category::logits);
  };
  if (d_.scaled_logits) head_.out = scale_logits(head_.out, Phase::forward);
  if (d_.soft_capped_logits) head_.out = cap_logits(head_.out);
  TensorId wide = head_.out;
  if (regime_.compute != DType::fp32) {
    wide = logits("loss.logits.fp32", DType::fp32);
    b_.op("loss.logits.fp32", Phase::forward).read(head_.out).write(wide);
  }
  upcast_logits_ = wide;
  returned_logits_ = strategy_.transformers < models::kLossUpcasts ? wide : head_.out;
  if (shifts_logits())
    wide = shift_logits(wide);
  else
    loss_targets();
  log_probabilities_ = b_.tensor(
      "loss.log_softmax", storage(Count(checked_multiply(scored_tokens(), d_.vocab)), DType::fp32),
      Category::logits);
  b_.op("loss.log_softmax", Phase::forward).read(wide).write(log_probabilities_);
  loss_ = b_.tensor("loss", Bytes(4), Category::activations);
  total_weight_ = b_.tensor("loss.total_weight", Bytes(4), Category::activations);
  b_.op("loss.nll", Phase::forward)
      .read(log_probabilities_)
      .read(targets_)
      .write(loss_)
      .write(total_weight_);
}

// The labels are padded by one; the head and the loss follow in one of three kinds. Python drops
// the logits when the step function has returned the loss.
void StepWriter::loss_forward() {
  const bool plain = !d_.soft_capped_logits && !d_.scaled_logits && !parts_.head.bias;
  check(plain || strategy_.loss == Loss::full, ErrorKind::unsupported,
        "--loss: fused and chunked losses are not modelled where logits are scaled or capped, or "
        "the head has a bias");
  b_.open(kNoGroup, false, times_);
  if (tail_is_head_) gather_forward(tail_, {runs_.back().units.back().gather_forward, -1});
  total_weight_ = upcast_logits_ = shifted_logits_ = returned_logits_ = padded_labels_ = kNoTensor;
  switch (strategy_.loss) {
    case Loss::full:
      full_loss_forward();
      break;
    case Loss::chunked:
      chunked_loss_forward();
      returned_logits_ = head_.out;
      break;
    case Loss::fused:
      fused_loss_forward();
      break;
  }
  // The last unit that was gathered keeps its all-gather output until the root's forward returns.
  if (fsdp())
    b_.op("fsdp.free_all_gather", Phase::forward)
        .touch(tail_.empty() ? runs_.back().units.back().gather_forward : tail_.gather_forward,
               tail_.empty() ? -1 : 0, kNoTensor, Access::release);
  release_cached_casts();
  // `outputs` and the decoder's result go with the frames that hold them.
  auto returned = b_.op("model.outputs", Phase::forward);
  if (upcast_logits_ != returned_logits_) returned.release(upcast_logits_);
  returned.release(shifted_logits_).release(final_norm_.out).release(padded_labels_);
  if (!rules_.hold_outputs) returned.release(returned_logits_);
  b_.close();
}

// Autocast's cache holds every cast weight until the context exits, checkpointed or not. Only
// weights that require gradients are cached.
void StepWriter::release_casts(OpBuilder exit, const LayerPart& layer, const LayerSaved& s) {
  for (std::size_t i = 0; i < s.linears.size(); ++i) {
    const LinearPart& part = layer.linears[i];
    const LinearSaved& saved = s.linears[i];
    if (part.train_weight) exit.release(saved.base.weight_cast);
    if (part.bias && part.train_bias) exit.release(saved.base.bias_cast);
    exit.release(saved.a.weight_cast).release(saved.b.weight_cast);
  }
}

void StepWriter::release_cached_casts() {
  if (!regime_.autocast) return;
  auto exit = b_.op("autocast.exit", Phase::forward);
  if (parts_.head.train_weight) exit.release(head_.base.weight_cast);
  if (parts_.head.bias && parts_.head.train_bias) exit.release(head_.base.bias_cast);
  for (const Run& run : runs_)
    for (std::size_t j = 0; j < run.stride(); ++j)
      release_casts(exit, run.layer(j), recomputes() ? run.kept[j] : run.saved[j]);
}

// nll_loss_backward and log_softmax_backward each make a full fp32 gradient; .float()'s backward
// casts it down.
TensorId StepWriter::full_loss_backward() {
  const auto logits = [&](const char* name, std::int64_t tokens, DType dtype) {
    return b_.tensor(name, storage(Count(checked_multiply(tokens, d_.vocab)), dtype),
                     Category::logits);
  };
  const std::int64_t t = tokens_.total(), scored = scored_tokens();
  const TensorId d_log = logits("loss.log_softmax.grad", scored, DType::fp32);
  b_.op("loss.nll", Phase::backward).read(seed_).read(targets_).read(total_weight_).write(d_log);
  TensorId d_logits = logits(shifts_logits() ? "loss.logits.shifted.grad" : "loss.logits.grad.fp32",
                             scored, DType::fp32);
  b_.op("loss.log_softmax", Phase::backward).read(d_log).read(log_probabilities_).write(d_logits);
  if (shifts_logits()) d_logits = shift_logits_backward(d_logits);
  if (regime_.compute != DType::fp32) {
    const TensorId low = logits("loss.logits.grad", t, regime_.compute);
    b_.op("loss.logits.fp32", Phase::backward).read(d_logits).write(low);
    d_logits = low;
  }
  if (d_.soft_capped_logits) d_logits = cap_logits_backward(d_logits);
  if (d_.scaled_logits) d_logits = scale_logits(d_logits, Phase::backward);
  if (!loss_prefetches_) prefetch_last_layer();
  unit_ = head_unit_;
  return layer_
      .linear_backward(kHead, parts_.head, layer_.norm_out(regime_.residual),
                       final_grad() || parts_.final_norm.trains(), head_, d_logits)
      .tensor;
}

void StepWriter::loss_backward() {
  b_.open(kNoGroup, false, times_);
  layer_.set(Phase::backward, true);
  root_.next = embedding_.next = tail_.next = 0;
  seed_ = b_.tensor("loss.grad", Bytes(4), Category::temporaries);
  b_.op("loss", Phase::backward).write(seed_);
  if (loss_prefetches_) prefetch_last_layer();
  TensorId d_norm = kNoTensor;
  if (strategy_.loss == Loss::full)
    d_norm = full_loss_backward();
  else if (strategy_.loss == Loss::chunked)
    d_norm = chunked_loss_backward();
  else
    d_norm = fused_loss_backward();
  const bool grad = final_grad() || parts_.final_norm.trains();
  if (tail_is_head_) post_backward(tail_, {});
  if (grad) {
    unit_ = norm_unit_;
    layer_.norm_backward(kFinalNorm, parts_.final_norm,
                         {tokens_.total(), regime_.residual, final_grad()}, final_norm_, d_norm,
                         kNoTensor, {{runs_.back().out, -1}, {runs_.back().d_out, -1}, {}});
  }
  if (!tail_is_head_) post_backward(tail_, {});
  b_.close();
}

}  // namespace plimsoll::planner::pytorch
