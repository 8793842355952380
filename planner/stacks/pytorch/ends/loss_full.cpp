// The logits as the loss reads them, and cross entropy, as functions (tape/function.h).
#include "planner/stacks/pytorch/ends/head.h"

namespace plimsoll::planner::pytorch {

using tape::Extent;
using tape::Function;
using tape::Kind;
using tape::kNone;
using tape::ValueId;

namespace {

const LinearNames& kHead = end_names().head;

enum : Extent { kScored = 1 };  // kAll: logits of all tokens
// kAll: logits of those that are scored. Bytes: what compiled code reads.
enum : Extent { kTargets = 1, kOne, kLowTwice };

enum class Shift : std::uint8_t { none, view, copy };
struct Logits {
  DType dtype;
  bool scaled, capped, wide, returns_wide;
  Shift shift;
  bool twice;  // `logits[..., :-1, :]` is two slices
};

// Divided by a number (models/granite/modeling_granite.py) or by a soft cap: divided by it, tanh,
// times it (models/gemma2/modeling_gemma2.py). Then ForCausalLMLoss (transformers
// loss/loss_utils.py): logits.float(), which older ones call in the model, so that the low logits
// go at once; before 4.49 logits[..., :-1, :].contiguous(), a copy of several sequences.
Function logits_function(const Logits& of) {
  Function f;
  f.part_operations(false);
  ValueId x = f.given({tape::kAll, of.dtype}, true, ".logits");
  if (of.scaled || of.capped) x = f.named(f.apply(Kind::scale, x), ".logits.divided");
  if (of.capped) {
    x = f.named(f.apply(Kind::tanh, x), ".logits.tanh");
    x = f.named(f.apply(Kind::scale, x), ".logits.capped");
  }
  const ValueId wide = of.wide ? f.cast(x, DType::fp32) : x;
  if (wide != x) f.named(wide, ".logits.fp32");
  f.also_result(of.returns_wide ? wide : x);
  f.also_result(wide);
  f.result(wide);
  if (of.shift == Shift::none) return f;
  const ValueId scored = f.slice(wide, kScored);
  f.result(f.named(of.twice ? f.slice(scored, kScored) : scored, ".logits.shifted"));
  if (of.shift == Shift::copy) f.result(f.named(f.copy(f.result()), ".logits.shifted"));
  return f;
}

// cross_entropy: log_softmax, and nll_loss, which autocast runs in fp32. Compiled code reads the
// logits for the sum of exponentials and again.
Function entropy_function(DType dtype, DType loss) {
  Function f;
  f.part_operations(false);
  const ValueId logits = f.given({tape::kAll, dtype}, true, ".logits.fp32");
  const ValueId targets = f.given({kTargets, DType::int64}, false);
  const ValueId log = f.named(f.apply(Kind::log_softmax, logits), ".log_softmax");
  f.compiled_moves(kLowTwice);
  const ValueId wide = f.cast(log, loss);
  if (wide != log) f.named(wide, ".log_softmax.fp32");
  f.result(f.named(f.nll({wide, targets, kNone}, {kOne, loss}, ".total_weight"), ".nll"));
  return f;
}

constexpr const char* kLoss = "loss";

}  // namespace

bool HeadWriter::shifts_logits() const {
  const bool fms = regime_.patch.cross_entropy == KernelPatch::CrossEntropy::fms;  // its own loss
  return strategy_.loss == models::Loss::full && !d_.masked_loss && !d_.bare && d_.labels == 0 &&
         (fms || strategy_.transformers < models::kLossPadsLabels);
}

// Every sequence's last token has nothing to predict.
SymInt HeadWriter::scored_tokens() const {
  return shifts_logits() ? checked_multiply(tokens_.sequences, tokens_.length - 1)
                         : tokens_.total();
}

// BERT's loss reads the logits as they are; so did GPT-BigCode's own, until ForCausalLMLoss took
// its place.
bool HeadWriter::widens_logits() const {
  return !d_.masked_loss && d_.labels == 0 &&
         !(d_.low_loss_once && strategy_.transformers < models::kLossPadsLabels);
}

DType HeadWriter::loss_dtype() const {
  return widens_logits() || regime_.autocast ? DType::fp32 : regime_.compute;
}

// lm_head reads hidden_states[:, slice_indices, :], of Transformers' code alone; GPT-2's, Granite's
// and GPT-BigCode's of older releases reads hidden_states. The slice, too, ends at 2^63 - 1.
int HeadWriter::head_slices() const {
  const std::string& family = parts_.model_type;
  const bool whole = (family == "gpt2" && strategy_.transformers < models::Release{4, 53, 0}) ||
                     (family == "granite" && strategy_.transformers < models::Release{4, 48, 0}) ||
                     (family == "gpt_bigcode" && strategy_.transformers < models::kLossPadsLabels);
  const bool none = whole || d_.bare || d_.masked_loss || d_.labels > 0;
  return none || strategy_.torch >= models::kWholeAxisIsNoSlice ? 0 : 3;
}

TapePart HeadWriter::logits_part() const {
  const Shift shift = !shifts_logits()         ? Shift::none
                      : tokens_.sequences == 1 ? Shift::view
                                               : Shift::copy;
  const Logits of{regime_.compute,
                  d_.scaled_logits,
                  d_.soft_capped_logits,
                  widens_logits(),
                  strategy_.transformers < models::kLossUpcasts || d_.holds_stream ||
                      strategy_.code == models::ModelCode::torchtitan_2024_03,
                  shift,
                  strategy_.torch < models::kWholeAxisIsNoSlice};
  static tape::Rules<1u << 9> rules;
  std::size_t key = tape::dtype_bits(of.dtype) << 2 | static_cast<std::size_t>(shift);
  for (const bool bit : {of.scaled, of.capped, of.wide, of.returns_wide, of.twice})
    key = key << 1 | bit;
  return tape_part(kLoss, rules.find(key, [&] { return logits_function(of); }));
}

TapePart HeadWriter::entropy_part() const {
  const DType dtype = widens_logits() ? DType::fp32 : regime_.compute;
  static tape::Rules<1u << 4> rules;
  const std::size_t key = tape::dtype_bits(dtype) << 2 | tape::dtype_bits(loss_dtype());
  return tape_part(kLoss, rules.find(key, [&] { return entropy_function(dtype, loss_dtype()); }));
}

TapeCounts HeadWriter::logits_counts(SymInt tokens) const {
  TapeCounts counts{};
  counts[tape::kAll] = checked_multiply(tokens, d_.vocab);
  counts[kScored] = checked_multiply(shifts_logits() ? scored_tokens() : tokens, d_.vocab);
  counts.logits = kScored + 1;
  return counts;
}

TapeCounts HeadWriter::entropy_counts(SymInt tokens, TensorId targets) const {
  TapeCounts counts{};
  const SymInt scored = shifts_logits() ? scored_tokens() : tokens;
  counts[tape::kAll] = checked_multiply(scored, classes());
  counts[kTargets] = targets == kNoTensor ? SymInt(0) : scored;
  counts[kOne] = 1;
  const SymInt all = checked_multiply(tokens, classes());
  counts[kLowTwice] = (layer_.bytes(all, regime_.compute) * 2).value();
  counts.logits = 1;
  return counts;
}

// torchtitan's train.py of March 2024, `pred = model(input_ids)`: what the last step's forward made
// is the loop's until this one's is there, which is then kept as long. (In December it goes before
// the backward.)
TensorId HeadWriter::kept_until_the_next(TensorId made) {
  const TensorId kept = b_.tensor_in(models::kNoGroup, "pred",
                                     layer_.fp32(checked_multiply(tokens_.total(), d_.vocab)),
                                     Category::logits, models::Residency::persistent);
  b_.op("pred", Phase::forward).read(made).update(kept).release(made);
  b_.work().moves(0, 0);
  s_.end.returned_logits = kNoTensor;
  return kept;
}

void HeadWriter::full_forward() {
  layer_.linear_forward(kHead, parts_.head, {s_.final_norm.out}, head_input(), Category::logits,
                        s_.head);
  if (d_.bare && !d_.holds_stream) wrapper_.after_model();
  layer_.tape_forward(logits_part(), logits_counts(tokens_.total()), std::array{Ref{s_.head.out}},
                      s_.end.logits);
  if (s_.offloading != nullptr)
    packed_logits_ = s_.offloading->pack(logits_part(), logits_counts(tokens_.total()),
                                         std::array{Ref{s_.head.out}}, s_.end.logits);
  if (d_.holds_stream) {
    if (s_.tail.reshards) wrapper_.after_forward(s_.tail);
    leave_after_head();
  }
  const auto made = [](TensorId here, TensorId otherwise) {
    return here == kNoTensor ? otherwise : here;
  };
  s_.end.returned_logits = made(s_.end.logits.also[0], s_.head.out);
  TensorId wide = made(s_.end.logits.also[1], s_.end.returned_logits);
  if (strategy_.code == models::ModelCode::torchtitan_2024_03) wide = kept_until_the_next(wide);
  const TensorId scored = made(s_.end.logits.out, wide);
  if (!d_.masked_loss && s_.end.returned_logits != kNoTensor) s_.end.upcast_logits = wide;
  if (scored != wide) s_.end.shifted_logits = scored;
  s_.end.targets = kNoTensor;
  if (d_.holds_stream) {
    shift_labels();
  } else if (!shifts_logits()) {
    if (!d_.masked_loss && !d_.bare) targets();
  } else if (tokens_.sequences > 1) {
    s_.end.targets =
        b_.tensor("loss.labels.shifted", SymBytes(checked_multiply(8, scored_tokens())),
                  Category::activations);
    b_.op("loss.labels", Phase::forward).write(s_.end.targets);
  }
  if (overwrites_logits()) return overwriting_cross_entropy(scored);
  s_.end.loss = b_.tensor("loss", storage(1, loss_dtype()), Category::activations);
  layer_.tape_forward(entropy_part(), entropy_counts(tokens_.total(), s_.end.targets),
                      std::array{Ref{scored}, Ref{s_.end.targets}}, s_.end.entropy, false, {},
                      {s_.end.loss});
  if (s_.offloading != nullptr)
    packed_entropy_ =
        s_.offloading->pack(entropy_part(), entropy_counts(tokens_.total(), s_.end.targets),
                            std::array{Ref{scored}, Ref{s_.end.targets}}, s_.end.entropy);
}

TensorId HeadWriter::full_backward() {
  std::array<Ref, 2> given{{{kNoTensor}, {s_.end.targets}}};
  TapeSaved entropy = s_.end.entropy, logits = s_.end.logits;
  if (s_.offloading != nullptr)
    s_.offloading->load(packed_entropy_, entropy_part(), given, entropy);
  TensorId d =
      overwrites_logits()
          ? overwriting_cross_entropy_backward()
          : layer_.tape_backward(entropy_part(), entropy_counts(tokens_.total(), s_.end.targets),
                                 given, entropy, {.result = s_.end.seed});
  if (d_.holds_stream) wrapper_.gather_again(s_.tail);
  if (d_.holds_stream && !s_.tail.reshards) wrapper_.before_head_backward();
  if (s_.offloading != nullptr) s_.offloading->load(packed_logits_, logits_part(), given, logits);
  const TensorId d_logits = layer_.tape_backward(logits_part(), logits_counts(tokens_.total()),
                                                 given, logits, {.result = d});
  if (d_logits != kNoTensor) d = d_logits;
  if (d_.holds_stream) wrapper_.before_backward(s_.tail);
  if (!s_.loss_prefetches && (!d_.holds_stream || s_.tail.reshards))
    wrapper_.before_head_backward();
  s_.unit = s_.head_unit;
  d = layer_
          .linear_backward(kHead, parts_.head, head_input(),
                           s_.final_grad() || parts_.final_norm.trains(), s_.head, d, {},
                           {{s_.final_norm.out}, norm_gradient_into(), {}})
          .tensor;
  if (d == kNoTensor) return d;
  return layer_.into_zeros(kHead.base.input_grad, d, checked_multiply(tokens_.total(), d_.hidden),
                           head_input(), head_slices());
}

}  // namespace plimsoll::planner::pytorch
