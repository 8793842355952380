// The head, the loss, and their backward.
#include "planner/stacks/pytorch/ends/head.h"

#include "planner/stacks/pytorch/functions.h"

namespace plimsoll::planner::pytorch {

using models::Access;
using models::kNoGroup;
using models::Loss;

namespace {
const ModuleNames& kFinalNorm = end_names().norm;
}  // namespace

void HeadWriter::finish_model() {
  const Ref last{s_.runs.back().out, -1};
  b_.open(kNoGroup, false, s_.times);
  layer_.set(Phase::forward, true);
  cache_projections();
  if (s_.offloading != nullptr) s_.offloading->leave_layers();
  if (s_.input_buffer != kNoTensor) keep_last_input();
  if (!s_.tail_is_head) gather_tail();
  if (d_.embedding_width > 0 || d_.pooled) {
    d_.pooled ? pool() : project_out();
    leave_model();
    return b_.close();
  }
  if (d_.head_transform) leave_model();
  const Ref transformed{d_.head_transform ? transform_head() : kNoTensor};
  layer_.norm_forward(kFinalNorm, parts_.final_norm, d_.head_transform ? transformed : last,
                      final_norm_input(), s_.final_norm);
  if (s_.offloading != nullptr)
    packed_norm_ = s_.offloading->pack(norm_part(), norm_counts(), std::array{last}, s_.final_norm);
  if (!d_.head_transform) leave_model();
  b_.close();
}

// unsloth_zoo 2025.11.6, UnslothCheckpointFunction.forward: from the second step on the last
// layer's input is not offloaded (LAST_GC_INDEX).
void HeadWriter::keep_last_input() {
  s_.last_input = b_.tensor("activations.last", s_.stream_bytes(), Category::activations);
  b_.op("activations.last", Phase::forward).write(s_.last_input);
  b_.work().moves(0, 0);
}

void HeadWriter::gather_tail() {
  wrapper_.before_forward(s_.tail, {s_.runs.back().units.back().gather_forward, -1});
}

NormInput HeadWriter::final_norm_input() const {
  if (!d_.head_transform)
    return {s_.stream_tokens(), regime_.residual, s_.final_grad(), regime_.patch.last};
  return {tokens_.total(), regime_.compute, s_.final_grad() || parts_.head_transform.trains()};
}

// Python holds the embeddings, the mask and the position ids until the decoder's forward returns
// (a frozen embedding whose output was asked to require a gradient, for checkpoints under PEFT,
// is a leaf that the graph holds). BERT's holds what its embeddings returned, too, and the result.
void HeadWriter::leave_model() {
  if (d_.bare) return;
  const Ref last{s_.runs.back().out, -1};
  auto model = b_.op("model", Phase::forward);
  s_.drop_returned(model, s_.runs.size() - 1, -1);
  model
      .release(s_.leaf_input() && s_.front.embedded == s_.front.looked_up ? kNoTensor
                                                                          : s_.front.embedded)
      .release(s_.front.positions)
      .release(s_.front.position_ids)
      .release(s_.front.padding_mask)
      .release(s_.front.alibi)
      .release(s_.masks[0])
      .release(s_.masks[1]);
  for (const TensorId table : {s_.cos[0], s_.sin[0], s_.cos[1], s_.sin[1]}) model.release(table);
  if (d_.head_transform || d_.pooled)
    model.release(s_.hidden);
  else
    model.touch(last.tensor, last.delta, last.beyond, Access::release);
}

// Labels padded by one, then cut: a view of one sequence, a copy of several.
void HeadWriter::targets() {
  const SymInt batch = tokens_.sequences;
  s_.end.padded_labels =
      b_.tensor("loss.labels.padded", SymBytes(checked_multiply(8, batch * (tokens_.length + 1))),
                Category::activations);
  b_.op("loss.labels", Phase::forward).write(s_.end.padded_labels);
  s_.end.targets = s_.end.padded_labels;
  if (batch > 1) {
    s_.end.targets =
        b_.tensor("loss.labels.shifted", SymBytes(checked_multiply(8, tokens_.total())),
                  Category::activations);
    b_.op("loss.labels", Phase::forward).read(s_.end.padded_labels).write(s_.end.targets);
  }
}

// Of the projection that a layer's first GEMM makes: over a packed base it is of its input's.
DType HeadWriter::cached_dtype() const {
  const BlockPlan& plan = s_.runs.back().plan(0);
  const auto projection = std::ranges::find(plan.nodes, models::OpKind::linear,
                                            [](const NodePlan& at) { return at.node->kind; });
  return plan.value(projection->node->out[0]).dtype;
}

// GPTBigCodeModel.forward of older releases returns keys and values although it trains: views of
// each layer's whole projection, which recomputation would have let go. Here all at once, behind
// the last layer.
void HeadWriter::cache_projections() {
  s_.end.cache = kNoTensor;
  if (d_.cached_once == 0 || strategy_.transformers >= models::kLossPadsLabels || !s_.recomputes())
    return;
  const SymBytes layer =
      layer_.bytes(checked_multiply(tokens_.total(), d_.cached_once), cached_dtype());
  s_.end.cache = b_.tensor("past_key_values", layer * d_.layers, Category::activations);
  b_.op("past_key_values", Phase::forward).write(s_.end.cache);
  b_.work().moves(0, 0);
}

// The labels are padded by one; the head and the loss follow in one of three kinds. Python drops
// the logits when the step function has returned the loss.
void HeadWriter::loss_forward() {
  const bool liger = strategy_.kernels == models::Kernels::liger;
  const bool caps = d_.soft_capped_logits && !(liger && strategy_.loss == Loss::fused);
  const bool plain = !caps && !d_.scaled_logits && !parts_.head.bias && !d_.masked_loss &&
                     d_.embedding_width == 0 && d_.labels == 0;
  check(plain || strategy_.loss == Loss::full || strategy_.loss == Loss::tiled,
        ErrorKind::unsupported,
        "--loss: fused and chunked losses are not modelled where logits are scaled or capped, or "
        "the head has a bias, or reads a projection, or classifies");
  b_.open(kNoGroup, false, s_.times);
  if (models::is_litgpt(strategy_.code)) {
    litgpt_forward();
    return b_.close();
  }
  if (s_.tail_is_head && !heads_parts()) gather_tail();
  s_.end.upcast_logits = s_.end.shifted_logits = s_.end.returned_logits = s_.end.padded_labels =
      kNoTensor;
  switch (strategy_.loss) {
    case Loss::full:
      if (d_.labels > 0)
        classifier_forward();
      else
        vocab_parallel() ? parallel_forward() : full_forward();
      break;
    case Loss::chunked:
      heads_parts() ? parts_forward() : chunked_forward();
      break;
    case Loss::fused:
      strategy_.kernels == models::Kernels::unsloth ? unsloth_forward() : fused_forward();
      break;
    case Loss::tiled:
      tiled_forward();
      break;
  }
  if (!d_.bare) wrapper_.after_model();
  release_cached_casts();
  // `outputs` and the decoder's result go with the frames that hold them.
  auto returned = b_.op("model.outputs", Phase::forward);
  if (s_.end.upcast_logits != s_.end.returned_logits) returned.release(s_.end.upcast_logits);
  returned.release(s_.end.shifted_logits).release(s_.end.padded_labels);
  if (!widens_outputs()) returned.release(s_.end.cache);
  if (d_.labels > 0) release_classifier(returned);
  if (d_.head_transform || d_.pooled)
    returned.touch(s_.runs.back().out, -1, kNoTensor, Access::release);
  else if (!d_.holds_stream && !vocab_parallel())
    returned.release(s_.final_norm.out);
  if (!rules_.hold_outputs && !widens_outputs()) returned.release(s_.end.returned_logits);
  for (const TensorId held : s_.front.prompt.held) returned.release(held);
  wrapper_.outputs_returned();
  if (widens_outputs()) widen_outputs();
  if (strategy_.loss == Loss::tiled) tiled_sums();
  b_.close();
  if (parts_.prefix_tokens > 0) drop_cache();
}

// Accelerate wraps a forward under autocast (accelerator.py, prepare_model, ConvertOutputsToFp32):
// what the model returns in 16 bits is copied to fp32 while it is there. Planned of GPT-BigCode's
// own loss alone, and of the keys and values that it returns: where the loss reads logits in fp32
// that moment needs less than the loss's backward.
bool HeadWriter::widens_outputs() const {
  return regime_.autocast && d_.low_loss_once && !widens_logits();
}

void HeadWriter::widen_outputs() {
  const SymInt tokens = tokens_.total();
  const TensorId logits =
      b_.tensor("logits.fp32", layer_.fp32(checked_multiply(tokens, d_.vocab)), Category::logits);
  const SymBytes layer = layer_.fp32(checked_multiply(tokens, 2 * d_.kv_width()));
  const TensorId cache =
      cached_dtype() == DType::fp32
          ? kNoTensor
          : b_.tensor("past_key_values.fp32", layer * d_.layers, Category::activations);
  b_.op("model.outputs.fp32", Phase::forward)
      .read(s_.end.returned_logits)
      .read(s_.end.cache)
      .write(logits)
      .write(cache);
  if (rules_.hold_outputs) s_.end.returned_logits = logits;
}

// PEFT's forward holds the cache until the model has returned.
void HeadWriter::drop_cache() {
  for (const Run& run : s_.runs) {
    b_.open(run.group, false, s_.times);
    for (std::size_t j = 0; j < run.stride(); ++j) {
      b_.at_layer(static_cast<std::uint16_t>(j));
      const PrefixSaved& prefix = run.prefixes[j];
      b_.op("past_key_values", Phase::forward)
          .release(prefix.cached_k)
          .release(prefix.cached_v)
          .release(prefix.window);
      b_.work().moves(0, 0);
    }
    b_.close();
  }
}

void HeadWriter::release_cached_casts() {
  if (!regime_.autocast) return;
  auto exit = b_.op("autocast.exit", Phase::forward);
  Step::release_casts(exit, parts_.head, s_.head);
  Step::release_casts(exit, parts_.head_transform, s_.head_transform);
  Step::release_casts(exit, parts_.project_in, s_.project_in);
  for (std::size_t i = 0; i < parts_.prompt.size(); ++i)
    Step::release_casts(exit, parts_.prompt[i], s_.front.prompt.linears[i]);
  for (const Run& run : s_.runs)
    for (std::size_t j = 0; j < run.stride(); ++j)
      Step::release_casts(exit, run.layer(j), s_.saved_by_forward(run, j));
}

// Where the last norm makes its input's gradient in its result's, that is the layers' from the
// start.
Ref HeadWriter::norm_gradient_into() const {
  const bool in_place = regime_.patch.last == NormKernel::liger_in_place;
  return in_place && final_norm_input().grad ? Ref{s_.runs.back().d_out, -1} : Ref{};
}

void HeadWriter::backward() {
  b_.open(kNoGroup, false, s_.times);
  layer_.set(Phase::backward, true);
  s_.root.next = s_.embedding.next = s_.tail.next = 0;
  s_.end.seed = b_.tensor("loss.grad", storage(1, loss_dtype()), Category::temporaries);
  b_.op("loss", Phase::backward).write(s_.end.seed);
  if (s_.loss_prefetches) wrapper_.before_head_backward();
  TensorId d_norm = kNoTensor;
  if (models::is_litgpt(strategy_.code))
    d_norm = litgpt_backward();
  else if (d_.labels > 0)
    d_norm = classifier_backward();
  else if (strategy_.loss == Loss::full)
    d_norm = vocab_parallel() ? parallel_backward() : full_backward();
  else if (strategy_.loss == Loss::tiled)
    d_norm = tiled_backward();
  else if (strategy_.loss == Loss::chunked)
    d_norm = heads_parts() ? parts_backward() : chunked_backward();
  else
    d_norm = fused_backward();
  const bool narrow = d_.embedding_width > 0;
  if (narrow && (s_.final_grad() || parts_.head_transform.trains())) transform_back(d_norm);
  if (d_.pooled && (s_.final_grad() || parts_.head_transform.trains())) pooled_back(d_norm);
  if (s_.tail_is_head && !heads_parts()) wrapper_.after_backward(s_.tail, {});
  if (!narrow && !d_.pooled && (final_norm_input().grad || parts_.final_norm.trains()))
    norm_backward(d_norm);
  if (!s_.tail_is_head) wrapper_.after_backward(s_.tail, {});
  // FSDP2's hook behind the head, which did not run as a module, is not called.
  if (strategy_.loss == Loss::tiled) wrapper_.before_head_backward();
  b_.close();
}

TapePart HeadWriter::norm_part() const {
  return norm_tape(kFinalNorm, parts_.final_norm, final_norm_input(), regime_);
}

TapeCounts HeadWriter::norm_counts() const {
  return layer_.norm_counts(parts_.final_norm, final_norm_input());
}

void HeadWriter::norm_backward(TensorId d) {
  s_.unit = s_.norm_unit;
  const Ref last{s_.runs.back().out, -1}, d_last{s_.runs.back().d_out, -1};
  Place place = d_.head_transform ? Place{{s_.end.activated}, {}, {}} : Place{last, d_last, {}};
  if (regime_.patch.last != NormKernel::eager) {
    layer_.liger_norm_backward(kFinalNorm, parts_.final_norm, final_norm_input(), s_.final_norm,
                               d == kNoTensor ? d_last : Ref{d}, kNoTensor, place);
    return;
  }
  TapeSaved saved = s_.final_norm;
  if (s_.offloading != nullptr)
    s_.offloading->load(packed_norm_, norm_part(), std::span(&place.input, 1), saved);
  const TensorId d_in = layer_.norm_backward(kFinalNorm, parts_.final_norm, final_norm_input(),
                                             saved, d, kNoTensor, place);
  if (d_.head_transform && final_norm_input().grad) transform_back(d_in);
}

}  // namespace plimsoll::planner::pytorch
