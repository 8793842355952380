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
  end_.padded_labels =
      b_.tensor("loss.labels.padded", Bytes(checked_multiply(8, batch * (tokens_.length + 1))),
                Category::activations);
  b_.op("loss.labels", Phase::forward).write(end_.padded_labels);
  end_.targets = end_.padded_labels;
  if (batch > 1) {
    end_.targets = b_.tensor("loss.labels.shifted", Bytes(checked_multiply(8, tokens_.total())),
                             Category::activations);
    b_.op("loss.labels", Phase::forward).read(end_.padded_labels).write(end_.targets);
  }
}

// GPTBigCodeModel.forward of older releases returns keys and values although it trains: views of
// each layer's whole projection, which recomputation would have let go. Here all at once, behind
// the last layer.
void StepWriter::cache_projections() {
  end_.cache = kNoTensor;
  if (d_.cached_once == 0 || strategy_.transformers >= models::kLossPadsLabels || !recomputes())
    return;
  const Bytes layer =
      layer_.bytes(checked_multiply(tokens_.total(), d_.cached_once), regime_.compute);
  end_.cache = b_.tensor("past_key_values", layer * d_.layers, Category::activations);
  b_.op("past_key_values", Phase::forward).write(end_.cache);
  b_.work().moves(0, 0);
}

// The labels are padded by one; the head and the loss follow in one of three kinds. Python drops
// the logits when the step function has returned the loss.
void StepWriter::loss_forward() {
  const bool liger = strategy_.kernels == models::Kernels::liger;
  const bool caps = d_.soft_capped_logits && !(liger && strategy_.loss == Loss::fused);
  const bool plain =
      !caps && !d_.scaled_logits && !parts_.head.bias && !d_.masked_loss && d_.embedding_width == 0;
  check(plain || strategy_.loss == Loss::full, ErrorKind::unsupported,
        "--loss: fused and chunked losses are not modelled where logits are scaled or capped, or "
        "the head has a bias, or reads a projection");
  b_.open(kNoGroup, false, times_);
  if (tail_is_head_) gather_forward(tail_, {runs_.back().units.back().gather_forward, -1});
  end_.upcast_logits = end_.shifted_logits = end_.returned_logits = end_.padded_labels = kNoTensor;
  switch (strategy_.loss) {
    case Loss::full:
      full_loss_forward();
      break;
    case Loss::chunked:
      chunked_loss_forward();
      end_.returned_logits = head_.out;
      break;
    case Loss::fused:
      fused_loss_forward();
      break;
  }
  if (!d_.bare) leave_root();
  release_cached_casts();
  // `outputs` and the decoder's result go with the frames that hold them.
  auto returned = b_.op("model.outputs", Phase::forward);
  if (end_.upcast_logits != end_.returned_logits) returned.release(end_.upcast_logits);
  returned.release(end_.shifted_logits).release(end_.padded_labels).release(end_.cache);
  if (d_.head_transform)
    returned.touch(runs_.back().out, -1, kNoTensor, Access::release);
  else
    returned.release(final_norm_.out);
  if (!rules_.hold_outputs) returned.release(end_.returned_logits);
  b_.close();
}

// The last unit that was gathered keeps its all-gather output until the root's forward returns.
void StepWriter::leave_root() {
  if (!fsdp()) return;
  b_.op("fsdp.free_all_gather", Phase::forward)
      .touch(tail_.empty() ? runs_.back().units.back().gather_forward : tail_.gather_forward,
             tail_.empty() ? -1 : 0, kNoTensor, Access::release);
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
  const auto end = [&](const LinearPart& part, const LinearSaved& saved) {
    if (part.train_weight) exit.release(saved.base.weight_cast);
    if (part.bias && part.train_bias) exit.release(saved.base.bias_cast);
    exit.release(saved.a.weight_cast).release(saved.b.weight_cast);
  };
  end(parts_.head, head_);
  end(parts_.head_transform, head_transform_);
  end(parts_.project_in, project_in_);
  for (const Run& run : runs_)
    for (std::size_t j = 0; j < run.stride(); ++j)
      release_casts(exit, run.layer(j), recomputes() ? run.kept[j] : run.saved[j]);
}

// Where the last norm makes its input's gradient in its result's, that is the layers' from the
// start.
Ref StepWriter::head_into() const {
  const bool in_place = regime_.patch.last == NormKernel::liger_in_place;
  return in_place && final_norm_input().grad ? Ref{runs_.back().d_out, -1} : Ref{};
}

void StepWriter::loss_backward() {
  b_.open(kNoGroup, false, times_);
  layer_.set(Phase::backward, true);
  root_.next = embedding_.next = tail_.next = 0;
  end_.seed = b_.tensor("loss.grad", storage(Count(1), loss_dtype()), Category::temporaries);
  b_.op("loss", Phase::backward).write(end_.seed);
  if (loss_prefetches_) prefetch_last_layer();
  TensorId d_norm = kNoTensor;
  if (strategy_.loss == Loss::full)
    d_norm = full_loss_backward();
  else if (strategy_.loss == Loss::chunked)
    d_norm = chunked_loss_backward();
  else
    d_norm = fused_loss_backward();
  const bool narrow = d_.embedding_width > 0;
  if (narrow && (final_grad() || parts_.head_transform.trains())) transform_back(d_norm);
  const bool grad = !narrow && (final_norm_input().grad || parts_.final_norm.trains());
  if (tail_is_head_) post_backward(tail_, {});
  if (grad) {
    unit_ = norm_unit_;
    const Ref last{runs_.back().out, -1}, d_last{runs_.back().d_out, -1};
    const Place place =
        d_.head_transform ? Place{{end_.activated}, {}, {}} : Place{last, d_last, {}};
    if (regime_.patch.last != NormKernel::eager) {
      const Ref d_out = d_norm == kNoTensor ? d_last : Ref{d_norm};
      layer_.liger_norm_backward(kFinalNorm, parts_.final_norm, final_norm_input(), final_norm_,
                                 d_out, kNoTensor, place);
    } else {
      const TensorId d = layer_.norm_backward(kFinalNorm, parts_.final_norm, final_norm_input(),
                                              final_norm_, d_norm, kNoTensor, place);
      if (d_.head_transform && final_norm_input().grad) transform_back(d);
    }
  }
  if (!tail_is_head_) post_backward(tail_, {});
  b_.close();
}

}  // namespace plimsoll::planner::pytorch
