// Embedding, final norm, head and loss.
#include "planner/stacks/pytorch/step.h"

namespace plimsoll::planner::pytorch {

using models::Access;
using models::kNoGroup;
using models::Loss;
using models::module_names;
using models::PositionKind;

namespace {
constexpr const ModuleNames& kEmbedding = module_names<"embed_tokens">;
constexpr const ModuleNames& kPositions = module_names<"embed_positions">;
constexpr const ModuleNames& kFinalNorm = module_names<"norm">;
constexpr const ModuleNames& kHead = module_names<"lm_head">;
}  // namespace

void StepWriter::embed() {
  const std::int64_t t = tokens_.total(), n = checked_multiply(t, d_.hidden);
  const std::int64_t s = tokens_.length;
  const DType stream = regime_.residual;
  const bool fsdp = parallelism_ == DataParallelism::fsdp2;
  b_.open(kNoGroup, false, times_);
  layer_.set(Phase::forward, true);
  if (fsdp && d_.tied_head) gather_forward(tail_, {});
  if (fsdp && !embedding_.parameters->empty())
    gather_forward(embedding_, {d_.tied_head ? tail_.gather_forward : kNoTensor});
  const auto activation = [&](const char* name, std::int64_t values, DType dtype) {
    return b_.tensor(name, storage(Count(values), dtype), Category::activations);
  };
  embedded_ = activation(kEmbedding.out, n, stream);
  b_.op(kEmbedding.module, Phase::forward).write(embedded_);
  position_ids_ = activation("position_ids", s, DType::int64);
  b_.op("position_ids", Phase::forward).write(position_ids_);
  hidden_ = embedded_;
  positions_embedded_ = cos_ = sin_ = embedding_mask_ = kNoTensor;
  if (d_.position == PositionKind::learned) {
    // wpe sees positions of one sequence; the sum is a new tensor.
    positions_embedded_ = activation(kPositions.out, checked_multiply(s, d_.hidden), stream);
    b_.op(kPositions.module, Phase::forward).read(position_ids_).write(positions_embedded_);
    hidden_ = activation("embeddings", n, stream);
    b_.op("embeddings", Phase::forward).read(embedded_).read(positions_embedded_).write(hidden_);
    if (d_.embedding_dropout > 0) hidden_ = dropout_embedding(n, stream);
  } else {
    // Tables of one sequence; in fp32: angles [d/2], emb [d], then cos, cos·scale, sin, sin·scale
    // with cos and sin freed in turn, then the casts. 18 d bytes a position before the casts.
    cos_ = activation("rotary.cos", s * d_.head_dim, stream);
    sin_ = activation("rotary.sin", s * d_.head_dim, stream);
    const Bytes d4 = layer_.fp32(s * d_.head_dim);
    const Bytes most = layer_.fp32(s * d_.head_dim / 2) + d4 * 4;
    const Bytes made = layer_.bytes(s * d_.head_dim, stream) * 2;
    b_.op("rotary", Phase::forward).write(cos_).write(sin_).scratch(most - made);
  }
  if (fsdp && strategy_.data.zero >= 3 && !embedding_.parameters->empty())
    reshard_after_forward(embedding_);
  layer_.set_rotary(cos_, sin_);
  b_.close();
}

void StepWriter::finish_forward() {
  const std::int64_t t = tokens_.total();
  const bool fsdp = parallelism_ == DataParallelism::fsdp2;
  const Ref last{runs_.back().out, -1};
  b_.open(kNoGroup, false, times_);
  layer_.set(Phase::forward, true);
  if (fsdp && !d_.tied_head) gather_forward(tail_, {runs_.back().units.back().gather_forward, -1});
  layer_.norm_forward(kFinalNorm, parts_.final_norm, last, t, d_.hidden, true, final_norm_);
  // Python holds the embeddings and the position ids until the decoder's forward returns.
  b_.op("model", Phase::forward)
      .release(embedded_)
      .release(positions_embedded_)
      .release(position_ids_)
      .touch(last.tensor, last.delta, last.beyond, Access::release);
  b_.close();
}

// nn.Linear, then ForCausalLMLoss (transformers loss/loss_utils.py): logits.float(), labels padded
// by one, cross_entropy = log_softmax + nll_loss. Python drops the logits when the step function
// has returned the loss.
void StepWriter::loss_forward() {
  const std::int64_t t = tokens_.total(), v = checked_multiply(t, d_.vocab);
  const bool fsdp = parallelism_ == DataParallelism::fsdp2;
  b_.open(kNoGroup, false, times_);
  check(strategy_.loss == Loss::full, ErrorKind::unsupported,
        "--loss chunked and fused are not modelled for stack pytorch yet");
  layer_.linear_forward(kHead, parts_.head, {final_norm_.out}, regime_.residual, true,
                        Category::logits, head_);
  if (fsdp) {
    const TensorId held =
        d_.tied_head ? runs_.back().units.back().gather_forward : tail_.gather_forward;
    b_.op("fsdp.free_all_gather", Phase::forward)
        .touch(held, d_.tied_head ? -1 : 0, kNoTensor, Access::release);
  }
  const auto logits = [&](const char* name, DType dtype) {
    return b_.tensor(name, storage(Count(v), dtype), Category::logits);
  };
  TensorId wide = head_.out;
  if (regime_.compute != DType::fp32) {
    wide = logits("loss.logits.fp32", DType::fp32);
    b_.op("loss.logits.fp32", Phase::forward).read(head_.out).write(wide);
  }
  // Labels padded by one, then cut: a view of one sequence, a copy of several.
  const std::int64_t batch = tokens_.sequences;
  const TensorId padded =
      b_.tensor("loss.labels.padded", Bytes(checked_multiply(8, batch * (tokens_.length + 1))),
                Category::activations);
  b_.op("loss.labels", Phase::forward).write(padded);
  targets_ = padded;
  if (batch > 1) {
    targets_ =
        b_.tensor("loss.labels.shifted", Bytes(checked_multiply(8, t)), Category::activations);
    b_.op("loss.labels", Phase::forward).read(padded).write(targets_);
  }
  log_probabilities_ = logits("loss.log_softmax", DType::fp32);
  b_.op("loss.log_softmax", Phase::forward).read(wide).write(log_probabilities_);
  loss_ = b_.tensor("loss", Bytes(4), Category::activations);
  const TensorId weight = b_.tensor("loss.total_weight", Bytes(4), Category::activations);
  b_.op("loss.nll", Phase::forward)
      .read(log_probabilities_)
      .read(targets_)
      .write(loss_)
      .write(weight);
  // `outputs` and the decoder's result go with the frames that hold them.
  b_.op("model.outputs", Phase::forward)
      .release(head_.out)
      .release(wide)
      .release(final_norm_.out)
      .release(padded);
  release_cached_casts();
  total_weight_ = weight;
  b_.close();
}

// Autocast's cache holds every cast weight until the forward's context exits, checkpointed or not.
// Only weights that require gradients are cached.
void StepWriter::release_cached_casts() {
  if (!regime_.autocast()) return;
  auto exit = b_.op("autocast.exit", Phase::forward);
  exit.release(head_.weight_cast);
  for (const Run& run : runs_)
    for (const LayerSaved& s : recomputes() ? run.kept : run.saved)
      for (const LinearSaved* linear : {&s.q, &s.k, &s.v, &s.o, &s.gate, &s.up, &s.down})
        exit.release(linear->weight_cast);
}

// nll_loss_backward and log_softmax_backward each make a full fp32 gradient; .float()'s backward
// casts it down.
void StepWriter::loss_backward() {
  const std::int64_t t = tokens_.total(), v = checked_multiply(t, d_.vocab);
  const bool fsdp = parallelism_ == DataParallelism::fsdp2;
  b_.open(kNoGroup, false, times_);
  layer_.set(Phase::backward, true);
  unit_ = &tail_;
  unit_->next = 0;
  const auto logits = [&](const char* name, DType dtype) {
    return b_.tensor(name, storage(Count(v), dtype), Category::logits);
  };
  seed_ = b_.tensor("loss.grad", Bytes(4), Category::temporaries);
  const TensorId d_log = logits("loss.log_softmax.grad", DType::fp32);
  b_.op("loss.nll", Phase::backward).write(seed_).read(targets_).read(total_weight_).write(d_log);
  TensorId d_logits = logits("loss.logits.grad.fp32", DType::fp32);
  b_.op("loss.log_softmax", Phase::backward).read(d_log).read(log_probabilities_).write(d_logits);
  if (regime_.compute != DType::fp32) {
    const TensorId low = logits("loss.logits.grad", regime_.compute);
    b_.op("loss.logits.fp32", Phase::backward).read(d_logits).write(low);
    d_logits = low;
  }
  if (fsdp) prefetch(runs_.back().units.back(), {runs_.back().units.back().gather_backward, -1});
  const TensorId d_norm =
      layer_.linear_backward(kHead, parts_.head, regime_.residual, true, head_, d_logits);
  layer_.norm_backward(kFinalNorm, parts_.final_norm, {runs_.back().out, -1}, t, d_.hidden, true,
                       final_norm_, d_norm, {runs_.back().d_out, -1});
  if (fsdp && !d_.tied_head) post_backward(tail_, {});
  b_.close();
}

// A dense gradient of the whole table. Tied to the head, it is added in place to the head's, which
// waits in the accumulation buffer (input_buffer.cpp): both live at once.
void StepWriter::embedding_backward() {
  const bool fsdp = parallelism_ == DataParallelism::fsdp2;
  const std::int64_t n = checked_multiply(tokens_.total(), d_.hidden);
  b_.open(kNoGroup, true, times_);
  layer_.set(Phase::backward, true);
  if (fsdp && !embedding_.parameters->empty()) copy_out_backward(embedding_);
  TensorId d = d_embedded_;
  if (embedding_mask_ != kNoTensor) {
    d = b_.tensor("embeddings.grad", storage(Count(n), regime_.residual), Category::temporaries);
    b_.op("embeddings.dropout", Phase::backward).read(d_embedded_).read(embedding_mask_).write(d);
  }
  const auto table = [&](const ModuleNames& names, std::int64_t rows, bool trained) {
    if (!trained) return;
    unit_ = &embedding_;
    const TensorId grad = begin(names, checked_multiply(rows, d_.hidden), false);
    b_.op(names.module, Phase::backward).read(d).write(grad);
    end(names, grad);
  };
  embedding_.next = 0;
  if (positions_embedded_ != kNoTensor)
    table(kPositions, parts_.position_rows, parts_.train_positions);
  // The position table's backward, or the checkpoints' arguments, held the ids until here.
  if (positions_embedded_ != kNoTensor || recomputes())
    b_.op("position_ids", Phase::backward).release(position_ids_);
  if (!d_.tied_head) {
    table(kEmbedding, d_.vocab, parts_.train_embedding);
  } else if (parts_.train_embedding) {
    const TensorId dense = b_.tensor(
        kEmbedding.weight_grad_new,
        storage(Count(checked_multiply(d_.vocab, d_.hidden)), regime_.weight), Category::gradients);
    b_.op(kEmbedding.module, Phase::backward).read(d).write(dense);
  }
  b_.op("embeddings", Phase::backward).release(d).release(seed_);
  const auto& first = runs_.front().units.front();
  if (fsdp && !embedding_.parameters->empty()) post_backward(embedding_, {first.reduce_in, +1});
  if (fsdp && d_.tied_head) post_backward(tail_, {embedding_.reduce_in});
  b_.close();
}

TensorId StepWriter::dropout_embedding(std::int64_t values, DType dtype) {
  embedding_mask_ = b_.tensor("embeddings.dropout.mask", layer_.dropout_mask(values, dtype),
                              Category::activations);
  const TensorId dropped =
      b_.tensor("embeddings.dropout", storage(Count(values), dtype), Category::activations);
  b_.op("embeddings.dropout", Phase::forward).read(hidden_).write(embedding_mask_).write(dropped);
  return dropped;
}

}  // namespace plimsoll::planner::pytorch
