// LitGPT's head and loss as its fine-tuning scripts call them inside Fabric (litgpt 0.5.13). What
// the model returns is widened to fp32 (plugins/precision/half.py, convert_output), and the loop's
// variable `logits` holds that until the next forward has returned: between steps, too. `full` is
// finetune/full.py: the logits of all tokens, and cross entropy of 128 rows at a time
// (utils.py, chunked_cross_entropy). `chunked` is finetune/lora.py: the head on 128 tokens of each
// sequence at a time (lm_head_chunk_size), and cross entropy of each of these.
#include <algorithm>
#include <set>
#include <utility>

#include "planner/stacks/pytorch/ends/head.h"

namespace plimsoll::planner::pytorch {

using models::Loss;

namespace {

const LinearNames& kHead = end_names().head;

}  // namespace

// The last token of each sequence has nothing to predict: `logits[-1][..., :-1, :]`.
void HeadWriter::divide_logits() {
  const SymInt length = tokens_.length, sequences = tokens_.sequences;
  s_.head_parts.clear();
  s_.loss_pieces.clear();
  if (strategy_.loss == Loss::full) {
    const SymInt rows = checked_multiply(sequences, length - 1);
    const std::int64_t count = ceil_divide(rows, kLossRows);
    s_.loss_pieces.assign(static_cast<std::size_t>(count), {.rows = kLossRows});
    s_.loss_pieces.back().rows = rows - kLossRows * (count - 1);
    return;
  }
  const std::int64_t count = ceil_divide(length, kLossRows);
  s_.head_parts.assign(static_cast<std::size_t>(count), {});
  s_.loss_pieces.assign(static_cast<std::size_t>(count), {.rows = sequences * kLossRows});
  for (HeadPart& part : s_.head_parts) part.tokens = sequences * kLossRows;
  const SymInt last = length - kLossRows * (count - 1);
  s_.head_parts.back().tokens = sequences * last;
  s_.loss_pieces.back().rows = sequences * (last - 1);
}

SymBytes HeadWriter::wide_logits(SymInt tokens) const {
  return layer_.fp32(checked_multiply(tokens, d_.vocab));
}

// The logits that the loop holds have their graph: what attributes of its nodes hold (MatMul4Bit's
// contexts, of bitsandbytes before 0.43.2) stays with them, and is there twice until the next
// forward has returned. As with the logits, one tensor stands for it between the forwards.
void HeadWriter::declare_held_graph() {
  held_graph_ = kNoTensor;
  if (!s_.graph_keeps()) return;
  SymBytes all = s_.final_grad() ? b_.rounded(s_.stream_bytes()) : SymBytes();  // the head's
  for (const Run& run : s_.runs)
    for (std::size_t j = 0; j < run.stride(); ++j) {
      const BlockPlan& plan = run.plan(j);
      std::set<models::ValueId> kept;
      for (const NodePlan& at : plan.nodes)
        if (at.linear != nullptr && at.linear->packed != nullptr &&
            plan.value(at.node->in[0]).grad && kept.insert(at.node->in[0]).second) {
          const ValuePlan& input = plan.value(at.node->in[0]);
          all += b_.rounded(
                     layer_.bytes(checked_multiply(tokens_.total(), input.width), input.dtype)) *
                 run.count;
        }
    }
  held_graph_ = b_.tensor_in(models::kNoGroup, "graph.inputs", all, Category::activations,
                             models::Residency::persistent);
}

// What backward still reads of it is that tensor's, too.
void HeadWriter::replace_held_graph() {
  if (held_graph_ == kNoTensor) return;
  b_.close();
  for (Run& run : s_.runs) {
    b_.open(run.group, false, s_.times);
    for (std::size_t j = 0; j < run.stride(); ++j) {
      b_.at_layer(static_cast<std::uint16_t>(j));
      LayerSaved& saved = run.saved[j];
      auto graph = b_.op("loss.graph", Phase::forward);
      Step::release_attributes(graph, saved);
      b_.work().moves(0, 0);
      const auto take = [&](TensorId& tensor) {
        const auto is_it = [&](const Ref& r) { return r.tensor == tensor; };
        if (tensor != kNoTensor && std::ranges::any_of(saved.attributes, is_it))
          tensor = held_graph_;
      };
      for (AttentionSaved& attention : saved.attentions) take(attention.fused_out);
      for (LinearSaved& linear : saved.linears) take(linear.a.input);
      for (TensorId& value : saved.values) take(value);
    }
    b_.close();
  }
  b_.open(models::kNoGroup, false, s_.times);
}

// What the loop holds from one forward to the next.
SymBytes HeadWriter::held_logits() {
  divide_logits();
  if (strategy_.loss == Loss::full) return wide_logits(tokens_.total());
  SymBytes all;
  for (const HeadPart& part : s_.head_parts) all += wide_logits(part.tokens);
  return all;
}

// The low logits go when all are widened; then the name is the new ones', for which stands what is
// held from the start.
void HeadWriter::widen_and_hold(std::span<const TensorId> low, std::span<const SymInt> tokens) {
  std::vector<TensorId> wide;
  for (std::size_t i = 0; i < low.size(); ++i) {
    wide.push_back(b_.tensor("logits.fp32", wide_logits(tokens[i]), Category::logits));
    b_.op("logits.fp32", Phase::forward).read(low[i]).write(wide.back());
  }
  auto returned = b_.op("logits", Phase::forward);
  for (const TensorId tensor : low) returned.release(tensor);
  for (const TensorId tensor : wide) returned.release(tensor);
  b_.work().moves(0, 0);
  replace_held_graph();
}

void HeadWriter::litgpt_head() {
  std::vector<TensorId> low;
  std::vector<SymInt> tokens;
  if (strategy_.loss == Loss::full) {
    layer_.linear_forward(kHead, parts_.head, {s_.final_norm.out}, head_input(), Category::logits,
                          s_.head);
    low.push_back(s_.head.out);
    tokens.push_back(tokens_.total());
  }
  for (HeadPart& part : s_.head_parts) {
    layer_.set_tokens(part.tokens);
    layer_.linear_forward(kHead, parts_.head, {s_.final_norm.out}, head_input(), Category::logits,
                          part.head);
    low.push_back(part.head.out);
    tokens.push_back(part.tokens);
  }
  layer_.set_tokens(tokens_.total());
  b_.op("model", Phase::forward).release(s_.final_norm.out);
  widen_and_hold(low, tokens);
}

// Rows of several sequences, of more than one token each, are laid out anew to join these axes.
bool HeadWriter::lays_out(SymInt rows) const {
  return 1 < tokens_.sequences && tokens_.sequences < rows;
}

// One token of each of several sequences is a strided view, which kernels lay out for themselves.
SymBytes HeadWriter::laid_out_inside(const LossPiece& piece, SymInt values, DType dtype) const {
  const bool strided = 1 < tokens_.sequences && piece.rows == tokens_.sequences;
  return strided ? layer_.bytes(values, dtype) : SymBytes();
}

// Labels but each first one.
void HeadWriter::piece_targets() {
  const auto copied = [&](SymInt rows) {
    const TensorId targets =
        b_.tensor("loss.labels.shifted", layer_.bytes(rows, DType::int64), Category::activations);
    b_.op("loss.labels", Phase::forward).write(targets);
    return targets;
  };
  if (strategy_.loss == Loss::full) {
    const SymInt rows = checked_multiply(tokens_.sequences, tokens_.length - 1);
    const TensorId all = lays_out(rows) ? copied(rows) : kNoTensor;
    for (LossPiece& piece : s_.loss_pieces) piece.targets = all;
    return;
  }
  for (LossPiece& piece : s_.loss_pieces)
    piece.targets = lays_out(piece.rows) ? copied(piece.rows) : kNoTensor;
}

// cross_entropy(reduction="none") of each piece; autograd keeps the log-probabilities.
void HeadWriter::piece_losses() {
  for (LossPiece& piece : s_.loss_pieces) {
    const SymInt values = checked_multiply(piece.rows, d_.vocab);
    piece.log = b_.tensor("loss.log_softmax", layer_.fp32(values), Category::logits);
    b_.op("loss.log_softmax", Phase::forward)
        .write(piece.log)
        .scratch(laid_out_inside(piece, values, DType::fp32));
    b_.work().moves(2 * layer_.fp32(values).real());
    piece.losses = b_.tensor("loss.nll", layer_.fp32(piece.rows), Category::temporaries);
    piece.weight = b_.tensor("loss.total_weight", Bytes(4), Category::activations);
    b_.op("loss.nll", Phase::forward)
        .read(piece.log)
        .read(piece.targets)
        .write(piece.losses)
        .write(piece.weight)
        .scratch(laid_out_inside(piece, piece.rows, DType::int64));
    b_.work().moves(layer_.fp32(piece.rows).real());
  }
}

// Their sum, divided by how many there are; the function's variables go when it returns.
void HeadWriter::join_losses(TensorId scored) {
  const SymInt rows = checked_multiply(tokens_.sequences, tokens_.length - 1);
  const auto scalar = [&](const char* name, std::int64_t bytes) {
    return b_.tensor(name, SymBytes(Bytes(bytes)), Category::activations);
  };
  const TensorId count = scalar("loss.tokens", 8);
  b_.op("loss.tokens", Phase::forward)
      .write(count)
      .scratch(layer_.bytes(rows, DType::boolean) + layer_.bytes(rows, DType::int64));
  const TensorId sum = scalar("loss.sum", 4);
  auto joined = b_.op("loss.sum", Phase::forward);
  for (const LossPiece& piece : s_.loss_pieces) joined.read(piece.losses);
  joined.write(sum).scratch(layer_.fp32(rows));
  s_.end.counted = scalar("loss.tokens.least", 8);
  b_.op("loss.tokens.least", Phase::forward)
      .read(count)
      .write(s_.end.counted)
      .scratch(layer_.bytes(1, DType::int64));
  s_.end.loss = scalar("loss", 4);
  auto loss = b_.op("loss", Phase::forward).read(sum).read(s_.end.counted).write(s_.end.loss);
  loss.release(scored).release(count).release(sum);
  for (const LossPiece& piece : s_.loss_pieces) loss.release(piece.losses);
}

void HeadWriter::litgpt_forward() {
  divide_logits();
  litgpt_head();
  const bool full = strategy_.loss == Loss::full;
  const SymInt rows =
      full ? checked_multiply(tokens_.sequences, tokens_.length - 1) : s_.loss_pieces.back().rows;
  TensorId scored = kNoTensor;  // laid out without each sequence's last token
  if (lays_out(rows)) {
    scored = b_.tensor("loss.logits.shifted", wide_logits(rows), Category::logits);
    b_.op("loss.logits.shifted", Phase::forward).write(scored);
  }
  piece_targets();
  piece_losses();
  join_losses(scored);
}

// The gradients of all pieces' logits in fp32, from the last piece to the first.
void HeadWriter::piece_gradients() {
  const TensorId seed = b_.tensor("loss.sum.grad", Bytes(4), Category::temporaries);
  b_.op("loss", Phase::backward).read(s_.end.seed).read(s_.end.counted).write(seed);
  for (std::size_t i = s_.loss_pieces.size(); i-- > 0;) {
    LossPiece& piece = s_.loss_pieces[i];
    const SymInt values = checked_multiply(piece.rows, d_.vocab);
    const TensorId d = b_.tensor("loss.nll.grad", layer_.fp32(values), Category::logits);
    b_.op("loss.nll", Phase::backward)
        .read(seed)
        .read(piece.log)
        .read(piece.targets)
        .read(piece.weight)
        .write(d)
        .scratch(layer_.fp32(piece.rows) + laid_out_inside(piece, piece.rows, DType::int64));
    b_.work().moves(layer_.fp32(values).real());
    piece.d_logits = b_.tensor("loss.log_softmax.grad", layer_.fp32(values), Category::logits);
    b_.op("loss.log_softmax", Phase::backward).read(d).read(piece.log).write(piece.d_logits);
  }
}

// A gradient of some rows, written into zeros of all (slice_backward).
TensorId HeadWriter::with_last_tokens(TensorId d, SymInt tokens) {
  const TensorId whole = b_.tensor("logits.fp32.grad", wide_logits(tokens), Category::logits);
  b_.op("logits.fp32.grad", Phase::backward).read(d).write(whole);
  return whole;
}

TensorId HeadWriter::narrowed(TensorId d, SymInt tokens) {
  const TensorId low = b_.tensor("lm_head.out.grad",
                                 layer_.bytes(checked_multiply(tokens, d_.vocab), regime_.compute),
                                 Category::logits);
  b_.op("lm_head.out.grad", Phase::backward).read(d).write(low);
  return low;
}

// All pieces as one (SplitBackward), and the GEMM of all tokens.
TensorId HeadWriter::litgpt_full_backward(bool input_grad) {
  const SymInt rows = checked_multiply(tokens_.sequences, tokens_.length - 1);
  const TensorId joined = b_.tensor("loss.logits.grad", wide_logits(rows), Category::logits);
  auto join = b_.op("loss.logits.grad", Phase::backward);
  for (const LossPiece& piece : s_.loss_pieces) join.read(piece.d_logits);
  join.write(joined);
  const TensorId d = narrowed(with_last_tokens(joined, tokens_.total()), tokens_.total());
  s_.unit = s_.head_unit;
  return layer_
      .linear_backward(kHead, parts_.head, head_input(), input_grad, s_.head, d, {},
                       {{s_.final_norm.out}, {}, {}})
      .tensor;
}

// First all are narrowed, then the GEMMs run, both from the last part to the first; what these made
// is joined.
TensorId HeadWriter::litgpt_parts_backward(bool input_grad) {
  std::vector<HeadPart>& parts = s_.head_parts;
  TensorId d = with_last_tokens(s_.loss_pieces.back().d_logits, parts.back().tokens);
  for (std::size_t i = parts.size(); i-- > 0;) {
    if (i + 1 < parts.size()) d = s_.loss_pieces[i].d_logits;
    parts[i].d_logits = narrowed(d, parts[i].tokens);
  }
  s_.unit = s_.head_unit;
  std::vector<TensorId> d_inputs;
  for (std::size_t i = parts.size(); i-- > 0;) {
    layer_.set_tokens(parts[i].tokens);
    d_inputs.push_back(layer_
                           .linear_backward(kHead, parts_.head, head_input(), input_grad,
                                            parts[i].head, parts[i].d_logits, {},
                                            {{s_.final_norm.out}, {}, {}})
                           .tensor);
  }
  layer_.set_tokens(tokens_.total());
  if (!input_grad) return kNoTensor;
  const SymBytes bytes = layer_.bytes(checked_multiply(tokens_.total(), d_.hidden), head_input());
  const TensorId joined = b_.tensor(kHead.base.input_grad, bytes, Category::temporaries);
  auto join = b_.op(kHead.base.input_grad, Phase::backward);
  for (const TensorId part : d_inputs) join.read(part);
  join.write(joined);
  return joined;
}

TensorId HeadWriter::litgpt_backward() {
  piece_gradients();
  const bool input_grad = s_.final_grad() || parts_.final_norm.trains();
  return strategy_.loss == Loss::full ? litgpt_full_backward(input_grad)
                                      : litgpt_parts_backward(input_grad);
}

}  // namespace plimsoll::planner::pytorch
