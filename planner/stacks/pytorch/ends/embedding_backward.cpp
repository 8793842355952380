// The gradients of the embeddings.
#include "planner/stacks/pytorch/ends/embedding.h"

namespace plimsoll::planner::pytorch {

using models::EmbeddingScale;
using models::kNoGroup;
using models::PositionKind;

namespace {
const ModuleNames& kEmbedding = end_names().tokens;

// Those of LitGPT's StableEmbedding, which no optimizer steps with or zeroes: each is added to what
// has been there since the first step.
class AddedToKept final : public GradientSink {
 public:
  AddedToKept(ProgramBuilder& b, const Regime& regime) : b_(b), regime_(regime) {}
  TensorId begin(const ModuleNames& names, std::int64_t elements, bool) override {
    return b_.tensor(names.weight_grad_new, storage(Count(elements), regime_.weight),
                     models::Category::temporaries);
  }
  bool keeps(std::int64_t) const override { return false; }
  void end(const ModuleNames& names, TensorId written) override {
    b_.op(names.weight_grad, Phase::backward).read(written);
  }

 private:
  ProgramBuilder& b_;
  const Regime& regime_;
};
}  // namespace

void EmbeddingWriter::backward() {
  b_.open(kNoGroup, true, s_.times);
  layer_.set(Phase::backward, true);
  TensorId d = kNoTensor;
  if (s_.d_embedded != kNoTensor) d = gradients(sum_gradient());
  if (parts_.prefix_tokens > 0) prefix_gradients();
  auto done = b_.op("embeddings", Phase::backward).release(s_.end.seed);
  s_.front.looked_up_grad = d;
  if (s_.leaf_input() && !wrapper_.ends_before_graph()) done.release(s_.front.looked_up).release(d);
  // Their inputs are token ids: no gradient's arrival reduces these units, but the end does.
  const TensorId first = s_.runs.front().units.front().reduce_in;
  const auto post = [&](Unit& unit, Ref previous) {
    wrapper_.after_backward(unit, previous);
    return unit.reduce_in != kNoTensor ? Ref{unit.reduce_in} : previous;
  };
  const Ref after_root = post(s_.root, {first, +1});
  // Where no gradient came this far, nothing was copied out for it.
  if (s_.d_embedded != kNoTensor || s_.embedding.full_backward == kNoTensor)
    post(s_.embedding, after_root);
  if (rules_.hold_outputs) b_.op("model.outputs", Phase::backward).release(s_.end.returned_logits);
  b_.close();
}

void EmbeddingWriter::leave_leaf() {
  if (!s_.leaf_input()) return;
  b_.open(kNoGroup, true, s_.times);
  b_.op("loss.graph", Phase::backward).release(s_.front.looked_up).release(s_.front.looked_up_grad);
  b_.work().moves(0, 0);
  b_.close();
}

// Of the sum of the embeddings, back through dropout, norm and scale.
TensorId EmbeddingWriter::sum_gradient() {
  const SymInt n = checked_multiply(s_.stream_tokens(), d_.hidden);
  const auto gradient = [&](const char* name) {
    return b_.tensor(name, storage(n, regime_.embedded), Category::temporaries);
  };
  TensorId d = s_.d_embedded;
  if (s_.front.dropout_mask != kNoTensor) {
    d = gradient("embeddings.grad");
    b_.op("embeddings.dropout", Phase::backward)
        .read(s_.d_embedded)
        .read(s_.front.dropout_mask)
        .write(d);
  }
  if (d_.embedding_norm) {
    s_.unit = &s_.root;
    AddedToKept kept(b_, regime_);
    if (models::is_litgpt(strategy_.code)) layer_.set_sink(&kept);
    d = layer_.norm_backward(end_names().embedding_norm, parts_.embedding_norm,
                             {tokens_.total(), regime_.weight, s_.embedding_grad()}, s_.front.norm,
                             d, kNoTensor, {{s_.front.sum}, {}, {}});
    layer_.set_sink(&wrapper_);
  }
  const bool reaches_scale =
      d_.embedding_scale == EmbeddingScale::model && (s_.leaf_input() || parts_.virtual_tokens > 0);
  if (d_.embedding_scale != EmbeddingScale::none && (parts_.train_embedding || reaches_scale)) {
    const TensorId scaled = std::exchange(d, gradient("embed_tokens.out.grad"));
    b_.op(kScaledEmbedding, Phase::backward).read(scaled).write(d);
  }
  return d;
}

// Dense gradients of whole tables, the positions' first. Returns the gradient of the table's rows.
TensorId EmbeddingWriter::gradients(TensorId d) {
  if (parts_.virtual_tokens > 0) return prompt_gradients(d);
  const TensorId d_rows = d_.embedding_width > 0 ? project_in_back(d) : d;
  if (d_.embeds_positions() && parts_.train_positions) position_gradient(d);
  if (parts_.trains_types()) {
    dense_gradient(end_names().token_types, s_.root, d_.token_types, d,
                   {tokens_.total(), "token_type_ids", s_.front.type_ids, copied_type_ids()});
  }
  wrapper_.before_backward(s_.embedding);
  if (!parts_.train_embedding) return d_rows;
  if (vocab_parallel()) {
    vocab_parallel_gradient(d_rows);
    return d_rows;
  }
  if (d_.tied_head)
    tied_gradient(d_rows);
  else
    dense_gradient(kEmbedding, *s_.table_unit, d_.vocab, d_rows, {tokens_.total()});
  return d_rows;
}

void EmbeddingWriter::dense_gradient(const ModuleNames& names, Unit& unit, SymInt rows,
                                     TensorId from, const Ids& ids) {
  s_.unit = &unit;
  const SymInt width = &names == &kEmbedding ? d_.table_width() : d_.hidden;
  AddedToKept kept(b_, regime_);
  GradientSink& sink = models::is_litgpt(strategy_.code) && d_.embedding_norm
                           ? static_cast<GradientSink&>(kept)
                           : wrapper_;
  const TensorId grad = sink.begin(names, checked_multiply(rows, width), false);
  auto backward = b_.op(names.module, Phase::backward).read(from).write(grad);
  take_blocks(b_, backward, embedding_scratch(b_, ids.count, rows, width), ids.copied);
  // Let go with the node; which is in front of what is done with its gradient.
  const bool first = sink.acts();
  if (!first) sink.end(names, grad);
  if (ids.name != nullptr) b_.op(ids.name, Phase::backward).release(ids.saved);
  if (first) sink.end(names, grad);
}

// The sum over the batch is what it reads.
void EmbeddingWriter::position_gradient(TensorId d) {
  TensorId summed = d;
  const bool counted = d_.position == PositionKind::counted;
  if (tokens_.sequences > 1 && !counted) {
    const Count values(checked_multiply(tokens_.length, d_.hidden));
    summed = b_.tensor("embed_positions.out.grad", storage(values, regime_.weight),
                       Category::temporaries);
    b_.op("embed_positions.out.grad", Phase::backward).read(d).write(summed);
  }
  dense_gradient(
      end_names().positions, s_.root, parts_.position_rows, summed,
      {counted ? tokens_.total() : tokens_.length, "position_ids", s_.front.position_rows, {}});
}

// The head's gradient has waited in the accumulation buffer. One of its own takes the embedding's
// in place; a view does not, and the sum is a third table.
void EmbeddingWriter::tied_gradient(TensorId d) {
  const SymInt elements = checked_multiply(d_.vocab, d_.table_width());
  const TensorId dense =
      b_.tensor(kEmbedding.weight_grad_new, storage(elements, regime_.weight), Category::gradients);
  auto backward = b_.op(kEmbedding.module, Phase::backward).read(d).write(dense);
  take_blocks(b_, backward, embedding_scratch(b_, tokens_.total(), d_.vocab, d_.table_width()));
  s_.unit = s_.table_unit;
  TensorId sum = s_.end.tied_grad;
  if (!s_.head_grad_is_view()) {
    b_.op(kEmbedding.weight_grad, Phase::backward).read(dense).update(sum);
  } else {
    sum = wrapper_.begin(kEmbedding, elements, false);
    b_.op(kEmbedding.weight_grad, Phase::backward).read(dense).read(s_.end.tied_grad).write(sum);
  }
  wrapper_.end(kEmbedding, sum);
}

TensorId EmbeddingWriter::project_in_back(TensorId d) {
  const bool input_grad = parts_.train_embedding || s_.leaf_input();
  if (!parts_.project_in.trains() && !input_grad) return kNoTensor;
  if (regime_.embedded != regime_.compute) {
    const Count values(checked_multiply(tokens_.total(), d_.hidden));
    const TensorId narrow =
        b_.tensor("project_in.out.grad", storage(values, regime_.compute), Category::temporaries);
    const TensorId wide = std::exchange(d, narrow);
    b_.op("project_in.out.grad", Phase::backward).read(wide).write(d);
  }
  s_.unit = &s_.root;
  return layer_
      .linear_backward(end_names().project_in, parts_.project_in, regime_.weight, input_grad,
                       s_.project_in, d, {}, {{s_.front.looked_up}, {}, {}})
      .tensor;
}

}  // namespace plimsoll::planner::pytorch
