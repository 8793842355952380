// --loss fused and chunked: the head and the loss together, a part of the tokens at a time.
#include <algorithm>
#include <bit>

#include "planner/stacks/pytorch/ends/head.h"

namespace plimsoll::planner::pytorch {

namespace {
const LinearNames& kHead = end_names().head;
constexpr std::int64_t kChunks = kHeadParts;
}  // namespace

// liger_kernel 0.8.5, ops/fused_linear_cross_entropy.py: the largest power of two that keeps a
// chunk of logits about as large as the hidden states, min(T, pow2(ceil(T / ceil(V / h)))) rows.
SymInt HeadWriter::fused_rows() const {
  const SymInt t = tokens_.total();
  const auto power = [](std::int64_t rows, std::int64_t, std::int64_t, std::int64_t) {
    return static_cast<std::int64_t>(std::bit_ceil(static_cast<std::uint64_t>(rows)));
  };
  return smaller(t, called(power, ceil_divide(t, ceil_divide(d_.vocab, d_.hidden))));
}

// Nobody keeps the padded labels of several sequences once they are copied, but a name in the loss
// that Liger's patch calls (liger_kernel 0.8.5, transformers/model/loss_utils.py).
void HeadWriter::flat_targets() {
  targets();
  if (strategy_.kernels == models::Kernels::liger && strategy_.loss == models::Loss::fused) return;
  if (tokens_.sequences > 1) s_.end.padded_labels = kNoTensor;
}

// Liger computes both gradients in forward: grad_input [T, h] in the hidden states' dtype,
// grad_weight [V, h] in the weight's (only where the head is trained), loss_1d fp32 [T], a mask of
// the targets. One chunk of logits lives at a time; its kernel overwrites it with its gradient, and
// the two GEMMs add into the gradients. Under autocast a chunk of the input, and of its
// gradient, is cast beside the logits; the GEMM with the weight leaves the weight's cast in
// autocast's cache, that with its transpose, a view, casts it again, so that from the second chunk
// on both casts live at once. Without a cast the GEMMs write where their results belong, but
// the weight's gradient of a chunk in fp32, which is added.
void HeadWriter::fused_forward() {
  const SymInt t = tokens_.total(), rows = fused_rows();
  const DType normed = layer_.norm_out(regime_.residual);
  const SymInt weights = checked_multiply(d_.vocab, d_.hidden);
  const auto tensor = [&](const char* name, SymInt values, DType dtype, Category category) {
    return b_.tensor(name, storage(values, dtype), category);
  };
  flat_targets();
  s_.head = {};
  s_.end.fused_input_grad = norm_gradient_into();
  if (s_.end.fused_input_grad.none())
    s_.end.fused_input_grad = {
        tensor("loss.hidden.grad", checked_multiply(t, d_.hidden), normed, Category::temporaries)};
  s_.end.fused_weight_grad = kNoTensor;
  s_.unit = s_.head_unit;
  if (parts_.head.train_weight)
    s_.end.fused_weight_grad = wrapper_.begin(kHead.base, weights, false);
  const TensorId losses = tensor("loss.by_token", t, DType::fp32, Category::activations);
  const TensorId mask = tensor("loss.mask", t, DType::boolean, Category::activations);
  const Ref d_hidden = s_.end.fused_input_grad;
  b_.op("loss.fused", Phase::forward)
      .read(s_.end.targets)
      .touch(d_hidden.tensor, d_hidden.delta, d_hidden.beyond, models::Access::write)
      .write(s_.end.fused_weight_grad)
      .write(losses)
      .write(mask);
  fused_chunks(rows, normed);
  s_.end.loss = b_.tensor("loss", Bytes(4), Category::activations);
  b_.op("loss", Phase::forward).read(losses).read(mask).read(s_.end.targets).write(s_.end.loss);
}

void HeadWriter::fused_chunks(SymInt rows, DType normed) {
  const SymInt weights = checked_multiply(d_.vocab, d_.hidden);
  const bool trains = parts_.head.train_weight, casts = regime_.casts_weights();
  const bool several = rows < tokens_.total();
  const TensorId chunk =
      b_.tensor("loss.logits.chunk", storage(checked_multiply(rows, d_.vocab), regime_.compute),
                Category::logits);
  if (casts)
    s_.head.base.weight_cast =
        b_.tensor(kHead.base.weight_cast, storage(weights, regime_.compute), Category::temporaries);
  SymBytes most;
  if (casts || normed != regime_.compute)
    most = layer_.bytes(checked_multiply(rows, d_.hidden), regime_.compute);
  if (trains && (regime_.compute == DType::fp32 || (casts && several)))
    most += layer_.bytes(weights, regime_.compute);
  b_.op("loss.fused", Phase::forward)
      .read(s_.final_norm.out)
      .read(s_.end.targets)
      .read(s_.end.fused_weight_grad)
      .write(s_.head.base.weight_cast)
      .write(chunk)
      .scratch(most);
  fused_work();
  if (casts)
    b_.work().casts(
        (layer_.bytes(weights, regime_.weight) + layer_.bytes(weights, regime_.compute)).real());
}

// Three GEMMs of each chunk; the kernel reads the logits twice and overwrites them.
void HeadWriter::fused_work() {
  const double t = tokens_.total().real(), v = static_cast<double>(d_.vocab);
  const double h = static_cast<double>(d_.hidden);
  const auto cut = [&](double m, double n, double k, bool summed) {
    const double wide = static_cast<double>(ceil_divide(d_.vocab, d_.hidden));
    b_.work().gemm({regime_.compute, m, n, k, 1, Gemm::Cut::liger, wide, summed});
  };
  cut(t, v, h, false);
  cut(t, h, v, false);
  if (parts_.head.train_weight) cut(h, v, t, true);
  b_.work().moves(
      3 * layer_.bytes(checked_multiply(tokens_.total(), d_.vocab), regime_.compute).real());
}

// The gradients exist; backward scales them in place.
TensorId HeadWriter::fused_backward() {
  const Ref d_hidden = s_.end.fused_input_grad;
  const bool forgets_targets =
      strategy_.kernels == models::Kernels::liger || strategy_.kernels == models::Kernels::unsloth;
  auto scale = b_.op("loss.fused", Phase::backward);
  scale.read(s_.end.seed)
      .read(forgets_targets ? kNoTensor : s_.end.targets)
      .touch(d_hidden.tensor, d_hidden.delta, d_hidden.beyond, models::Access::update)
      .update(s_.end.fused_weight_grad);
  b_.work().moves(0, 1);  // torch.equal(grad_output, 1): left as they are
  if (!s_.loss_prefetches) wrapper_.before_head_backward();
  s_.unit = s_.head_unit;
  if (s_.end.fused_weight_grad != kNoTensor) wrapper_.end(kHead.base, s_.end.fused_weight_grad);
  return d_hidden.delta == 0 ? d_hidden.tensor : kNoTensor;
}

// torchtune's chunked output, called by the model's forward as `export` writes it: the head runs on
// 8 parts of the tokens; Python keeps all parts' logits until the loss is returned, each is upcast
// by itself, and autograd keeps each part's log-probabilities. So forward's highest moment holds
// the low logits, all log-probabilities and one part upcast. (torchtune's own: loss_by_parts.cpp.)
void HeadWriter::chunked_forward() {
  const SymInt t = tokens_.total(), v = checked_multiply(t, d_.vocab);
  const SymInt part = checked_multiply(ceil_divide(t, kChunks), d_.vocab);
  layer_.linear_forward(kHead, parts_.head, {s_.final_norm.out}, layer_.norm_out(regime_.residual),
                        Category::logits, s_.head);
  s_.end.returned_logits = s_.head.out;
  flat_targets();
  s_.end.log_probabilities =
      b_.tensor("loss.log_softmax", storage(v, DType::fp32), Category::logits);
  s_.end.loss = b_.tensor("loss", Bytes(4), Category::activations);
  b_.op("loss.chunks", Phase::forward)
      .read(s_.head.out)
      .read(s_.end.targets)
      .write(s_.end.log_probabilities)
      .write(s_.end.loss)
      .scratch(regime_.compute == DType::fp32 ? SymBytes() : layer_.fp32(part), Category::logits);
  const SymBytes low = layer_.bytes(v, regime_.compute), wide = layer_.fp32(v);
  b_.work().moves((regime_.compute == DType::fp32 ? wide * 2 : low + wide * 3).real(), 3 * kChunks);
}

// Part by part from the last: two fp32 gradients of one part (p bytes each), cast down; the head's
// weight gradient of a part is added to the sum of the later ones (w bytes each); the part's
// log-probabilities die. Moments above all log-probabilities: the first part 2 p; the second's
// softmax p + w; the second's product 2 w + its low gradient - 2 p.
TensorId HeadWriter::chunked_backward() {
  const SymInt part = checked_multiply(ceil_divide(tokens_.total(), kChunks), d_.vocab);
  const SymBytes p = layer_.fp32(part), low = layer_.bytes(part, regime_.compute);
  const SymBytes w = parts_.head.train_weight
                         ? layer_.bytes(checked_multiply(d_.vocab, d_.hidden), regime_.compute)
                         : SymBytes();
  const SymBytes most = larger(p * 2, larger(p + w, w * 2 + low - p * 2));
  const TensorId d_part =
      b_.tensor("loss.logits.grad.part", storage(part, regime_.compute), Category::logits);
  b_.op("loss.chunks", Phase::backward)
      .read(s_.end.seed)
      .read(s_.end.targets)
      .read(s_.end.log_probabilities)
      .write(d_part)
      .scratch(larger(Bytes(0), most - low), Category::logits);
  const SymBytes all = layer_.fp32(checked_multiply(tokens_.total(), d_.vocab));
  const SymBytes cast = regime_.compute == DType::fp32 ? SymBytes() : all + low * kChunks;
  b_.work().moves((all * 4 + cast).real(), 3 * kChunks);
  if (!s_.loss_prefetches) wrapper_.before_head_backward();
  s_.unit = s_.head_unit;
  return layer_
      .linear_backward(kHead, parts_.head, layer_.norm_out(regime_.residual), true, s_.head, d_part,
                       {}, {{s_.final_norm.out}, norm_gradient_into(), {}})
      .tensor;
}

}  // namespace plimsoll::planner::pytorch
