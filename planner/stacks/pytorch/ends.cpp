// Embedding, masks and tables at the model's start; final norm; and the embedding's gradient.
#include <tuple>

#include "planner/kernels_of_op.h"
#include "planner/stacks/pytorch/step.h"

namespace plimsoll::planner::pytorch {

using models::Access;
using models::EmbeddingScale;
using models::kNoGroup;
using models::PositionKind;

namespace {

// find_packed_sequence_indices (transformers masking_utils.py): each sequence's first position - 1,
// in front of the positions; their differences; where those are not 1, and its running sum.
void check_packing(ProgramBuilder& builder, const ModuleWriter& of, Tokens tokens) {
  const std::int64_t b = tokens.sequences, t = tokens.total();
  auto op = builder.op("attention_mask.packing", Phase::forward);
  KernelsOfOp kernels(builder);
  kernels.take(of.bytes(b, DType::int64));
  const auto joined = kernels.take(of.bytes(t + b, DType::int64));
  kernels.take(of.bytes(t, DType::int64));
  kernels.drop(joined);
  const auto changes = kernels.take(of.bytes(t, DType::boolean));
  kernels.take(of.bytes(t, DType::int64));
  const auto partial = kernels.take(of.bytes(t, DType::int64));
  kernels.drop(partial);
  kernels.drop(changes);
  kernels.finish(op);
}
const ModuleNames& kEmbedding = end_names().tokens;
const ModuleNames& kPositions = end_names().positions;
const ModuleNames& kTypes = end_names().token_types;
const ModuleNames& kEmbeddingNorm = end_names().embedding_norm;
const ModuleNames& kFinalNorm = end_names().norm;
constexpr const char* kScaled = "embed_tokens.scaled";
}  // namespace

void StepWriter::embed() {
  const std::int64_t n = checked_multiply(tokens_.total(), d_.hidden), s = tokens_.length;
  const DType stream = regime_.residual;
  b_.open(kNoGroup, false, times_);
  layer_.set(Phase::forward, true);
  gather_forward(root_, {});
  gather_forward(embedding_, {root_.gather_forward});
  const auto activation = [&](const char* name, std::int64_t values, DType dtype) {
    return b_.tensor(name, storage(Count(values), dtype), Category::activations);
  };
  front_ = {};
  if (d_.token_types > 0) gather_token_types();
  front_.looked_up = front_.embedded = activation(
      kEmbedding.out, checked_multiply(tokens_.total(), d_.table_width()), regime_.weight);
  b_.op(kEmbedding.module, Phase::forward).write(front_.embedded);
  const std::int64_t looked_up = checked_multiply(tokens_.total(), d_.table_width());
  b_.work().moves(2 * layer_.bytes(looked_up, regime_.weight).real());
  if (d_.embedding_scale != EmbeddingScale::none) {
    const TensorId rows = std::exchange(front_.embedded, activation(kScaled, n, regime_.weight));
    b_.op(kScaled, Phase::forward).read(rows).write(front_.embedded);
    if (d_.embedding_scale == EmbeddingScale::module) front_.looked_up = front_.embedded;
  }
  if (embedding_.reshards) reshard_after_forward(embedding_);
  hidden_ = front_.embedded;
  cos_ = sin_ = masks_ = {kNoTensor, kNoTensor};
  if (d_.token_types > 0) {
    embed_token_types();
  } else if (!d_.counts_positions() && !d_.bare) {
    front_.position_ids = activation("position_ids", s, DType::int64);
    b_.op("position_ids", Phase::forward).write(front_.position_ids);
  }
  const bool embeds = d_.embeds_positions();
  if (embeds && !d_.masks_first) embed_positions();
  if (d_.embedding_norm) normalize_embedding();
  if (d_.counts_positions()) count_positions();
  model_masks();
  if (embeds && d_.masks_first) embed_positions();
  if (d_.embedding_dropout > 0) hidden_ = dropout_embedding(n, stream);
  if (d_.token_types > 0) leave_embeddings();
  if (d_.position == PositionKind::rope && !d_.bare) rotary_tables();
  layer_.set_rotary(cos_, sin_);
  layer_.set_masks(masks_, front_.alibi);
  b_.close();
}

// wpe sees positions of one sequence, OPT's table (whose first two rows are for padding) those of
// each; the sum with the tokens' is a new tensor.
void StepWriter::embed_positions() {
  const bool counted = d_.position == PositionKind::counted;
  const std::int64_t rows = counted ? tokens_.total() : tokens_.length;
  const auto activation = [&](const char* name, std::int64_t values, DType dtype) {
    return b_.tensor(name, storage(Count(values), dtype), Category::activations);
  };
  front_.position_rows =
      counted ? activation("position_rows", rows, DType::int64) : front_.position_ids;
  if (counted)
    b_.op("position_rows", Phase::forward).read(front_.position_ids).write(front_.position_rows);
  front_.positions = activation(kPositions.out, checked_multiply(rows, d_.hidden), regime_.weight);
  b_.op(kPositions.module, Phase::forward).read(front_.position_rows).write(front_.positions);
  if (d_.embedding_width > 0) project_in();
  const TensorId before = std::exchange(
      hidden_,
      activation("embeddings", checked_multiply(tokens_.total(), d_.hidden), regime_.weight));
  b_.op("embeddings", Phase::forward).read(before).read(front_.positions).write(hidden_);
}

void StepWriter::normalize_embedding() {
  front_.sum = hidden_;
  layer_.norm_forward(kEmbeddingNorm, parts_.embedding_norm, {hidden_},
                      {tokens_.total(), regime_.weight, embedding_grad()}, front_.norm);
  hidden_ = front_.norm.out;
}

// Does the sum of the embeddings require a gradient?
bool StepWriter::embedding_grad() const {
  return parts_.train_embedding || parts_.train_positions_any() || parts_.trains_types() ||
         leaf_input();
}

// A model whose layers alternate makes both, whichever its layers are.
void StepWriter::model_masks() {
  if (d_.window == 0 || d_.full_layers > 0) masks_[0] = model_mask(false);
  if (d_.window > 0) masks_[1] = model_mask(true);
}

// transformers masking_utils.py: sdpa_mask makes booleans [1, 1, s, s] from the indices of batch,
// head, queries and keys (le; for a sliding window gt, two ands, three at once); eager_mask fills
// [b, 1, s, s] in the stream's dtype from them.
// Before that it looks for packed sequences where a batch brings no mask of its own
// (find_packed_sequence_indices): differences of positions, booleans, their running sum and
// scratch. Of a mask that the batch brings it makes booleans; SDPA asks whether all are set (a sum
// in int64). Eager attention joins them to the causal ones: two squares, then a square of each
// sequence; indexing needs int64 pointers twice.
TensorId StepWriter::model_mask(bool sliding) {
  const std::int64_t t = tokens_.total();
  const bool counted = d_.counts_positions();
  const Bytes padding = counted ? layer_.bytes(t, DType::boolean) : Bytes(0);
  const Bytes ids = layer_.bytes(t, DType::int64);
  layer_.at_sliding(sliding);
  if (counted && layer_.path() != AttentionPath::eager)
    b_.op("attention_mask.padding", Phase::forward)
        .scratch(padding + ids + layer_.bytes(1, DType::int64));
  if (rules_.checks_packing && !counted && !d_.bidirectional && !d_.bare)
    check_packing(b_, layer_, tokens_);
  if (!layer_.needs_mask()) return kNoTensor;
  const std::int64_t square = checked_multiply(tokens_.length, tokens_.length);
  const bool eager = layer_.path() == AttentionPath::eager;
  const Bytes booleans = layer_.bytes(square, DType::boolean);
  const Bytes indices = layer_.bytes(tokens_.sequences, DType::int64) +
                        layer_.bytes(1, DType::int64) +
                        layer_.bytes(tokens_.length, DType::int64) * 2;
  const Bytes all = counted ? layer_.bytes(checked_multiply(t, tokens_.length), DType::boolean)
                            : booleans;  // of each sequence
  const Bytes made =
      counted ? padding + indices +
                    std::max({booleans * 2, booleans + ids * 2 + padding, booleans + padding + all})
              : indices + booleans * (layer_.windowed() ? 3 : 1);
  Bytes most = made;
  TensorId mask = kNoTensor;
  if (eager) {
    const std::int64_t values = checked_multiply(tokens_.sequences, square);
    mask = b_.tensor("attention_mask", storage(Count(values), layer_.mask_dtype()),
                     Category::activations);
    const Bytes filled = layer_.bytes(values, layer_.mask_dtype());
    const Bytes values_filled = layer_.bytes(1, layer_.mask_dtype()) + layer_.bytes(1, DType::fp16);
    most = std::max(made, padding + all + filled + values_filled) - filled;
  } else if (strategy_.transformers < models::kMasksAreBoolean) {
    // Added to the scores, and one column wider (_update_causal_mask): filled, then multiplied with
    // what is later than a query or too early for it, by the indices of keys and queries.
    const std::int64_t values = square + tokens_.length;
    mask = b_.tensor("attention_mask", storage(Count(values), layer_.mask_dtype()),
                     Category::activations);
    most = layer_.bytes(values, DType::boolean) * (layer_.windowed() ? 2 : 1) +
           layer_.bytes(tokens_.length + 1, DType::int64) +
           (layer_.windowed() ? layer_.bytes(tokens_.length, DType::int64) : Bytes(0));
  } else {
    mask =
        b_.tensor("attention_mask", storage(Count(square), DType::boolean), Category::activations);
    most -= booleans;
  }
  b_.op("attention_mask", Phase::forward).write(mask).scratch(most);
  return mask;
}

// Tables of one sequence; in fp32: positions, angles [d/2], emb [d], then cos, cos·scale, sin,
// sin·scale with cos and sin freed in turn, then the casts: 4 + 18 d bytes a position before them.
// Gemma 3 has tables for each kind of layer that it has.
void StepWriter::rotary_tables() {
  const bool both = d_.has_both_rotaries();
  for (std::size_t kind = 0; kind < (both ? 2 : 1); ++kind)
    std::tie(cos_[kind], sin_[kind]) = rotary_table();
  if (both) return;
  cos_[1] = cos_[0];
  sin_[1] = sin_[0];
}

std::pair<TensorId, TensorId> StepWriter::rotary_table() {
  const std::int64_t s = tokens_.length, values = checked_multiply(s, d_.rotated());
  const DType dtype = d_.fp32_rotary ? DType::fp32 : regime_.residual;
  const auto table = [&](const char* name) {
    return b_.tensor(name, storage(Count(values), dtype), Category::activations);
  };
  const TensorId cos = table("rotary.cos"), sin = table("rotary.sin");
  const Bytes emb = layer_.fp32(values);
  // FSDP1 casts buffers, and inv_freq is needed in fp32.
  const Bytes frequencies =
      buffer_dtype() == DType::fp32 ? Bytes(0) : layer_.fp32(d_.rotated() / 2);
  const bool multiplies = strategy_.transformers >= models::kRotaryMultiplies;
  const Bytes positions = multiplies ? Bytes(0) : layer_.fp32(s);
  const Bytes before = frequencies + positions + layer_.fp32(values / 2) + emb;
  const Bytes cast = layer_.bytes(values, dtype) * 2;
  const bool casts = dtype != DType::fp32;
  const Bytes most = std::max(before + emb * 3, before + emb * 2 + (casts ? cast : Bytes(0)));
  auto rotary = b_.op("rotary", Phase::forward);
  rotary.write(cos).write(sin).scratch(most - cast);
  if (!multiplies) layer_.take_workspace(rotary, false);  // a product of one column
  return {cos, sin};
}

TensorId StepWriter::dropout_embedding(std::int64_t values, DType dtype) {
  front_.dropout_mask = b_.tensor("embeddings.dropout.mask", Bytes(values), Category::activations);
  const TensorId dropped =
      b_.tensor("embeddings.dropout", storage(Count(values), dtype), Category::activations);
  b_.op("embeddings.dropout", Phase::forward)
      .read(hidden_)
      .write(front_.dropout_mask)
      .write(dropped);
  return dropped;
}

void StepWriter::finish_forward() {
  const Ref last{runs_.back().out, -1};
  b_.open(kNoGroup, false, times_);
  layer_.set(Phase::forward, true);
  cache_projections();
  if (!tail_is_head_) gather_forward(tail_, {runs_.back().units.back().gather_forward, -1});
  if (d_.embedding_width > 0) {
    project_out();
    leave_model();
    return b_.close();
  }
  if (d_.head_transform) leave_model();
  const Ref transformed{d_.head_transform ? transform_head() : kNoTensor};
  layer_.norm_forward(kFinalNorm, parts_.final_norm, d_.head_transform ? transformed : last,
                      final_norm_input(), final_norm_);
  if (!d_.head_transform) leave_model();
  b_.close();
}

NormInput StepWriter::final_norm_input() const {
  if (!d_.head_transform)
    return {tokens_.total(), regime_.residual, final_grad(), regime_.patch.last};
  return {tokens_.total(), regime_.compute, final_grad() || parts_.head_transform.trains()};
}

// Python holds the embeddings, the mask and the position ids until the decoder's forward returns
// (a frozen embedding whose output was asked to require a gradient, for checkpoints under PEFT,
// is a leaf that the graph holds). BERT's holds what its embeddings returned, too, and the result.
void StepWriter::leave_model() {
  if (d_.bare) return;
  const Ref last{runs_.back().out, -1};
  auto model = b_.op("model", Phase::forward);
  drop_returned(model, runs_.size() - 1, -1);
  model.release(leaf_input() && front_.embedded == front_.looked_up ? kNoTensor : front_.embedded)
      .release(front_.positions)
      .release(front_.position_ids)
      .release(front_.padding_mask)
      .release(front_.alibi)
      .release(masks_[0])
      .release(masks_[1]);
  if (d_.head_transform)
    model.release(hidden_);
  else
    model.touch(last.tensor, last.delta, last.beyond, Access::release);
}

bool StepWriter::leaf_input() const {
  return forces_input_gradient(strategy_) && !parts_.train_embedding &&
         !parts_.train_positions_any();
}

// The stream after the last layer requires a gradient.
bool StepWriter::final_grad() const {
  const LayerRun& last = parts_.runs.back();
  return last.input_grad || last.trains();
}

void StepWriter::embedding_backward() {
  const std::int64_t n = checked_multiply(tokens_.total(), d_.hidden);
  b_.open(kNoGroup, true, times_);
  layer_.set(Phase::backward, true);
  const bool reached = d_embedded_ != kNoTensor;
  if (reached) copy_out_backward(embedding_);
  TensorId d = d_embedded_;
  if (reached && front_.dropout_mask != kNoTensor) {
    d = b_.tensor("embeddings.grad", storage(Count(n), regime_.residual), Category::temporaries);
    b_.op("embeddings.dropout", Phase::backward)
        .read(d_embedded_)
        .read(front_.dropout_mask)
        .write(d);
  }
  if (reached && d_.embedding_norm) {
    unit_ = &root_;
    d = layer_.norm_backward(kEmbeddingNorm, parts_.embedding_norm,
                             {tokens_.total(), regime_.weight, embedding_grad()}, front_.norm, d,
                             kNoTensor, {{front_.sum}, {}, {}});
  }
  const bool reaches_scale = d_.embedding_scale == EmbeddingScale::model && leaf_input();
  if (reached && d_.embedding_scale != EmbeddingScale::none &&
      (parts_.train_embedding || reaches_scale)) {
    const TensorId scaled =
        std::exchange(d, b_.tensor("embed_tokens.out.grad", storage(Count(n), regime_.residual),
                                   Category::temporaries));
    b_.op(kScaled, Phase::backward).read(scaled).write(d);
  }
  if (reached) d = embedding_gradients(d);
  auto done = b_.op("embeddings", Phase::backward).release(end_.seed);
  if (leaf_input()) done.release(front_.looked_up).release(d);
  // Their inputs are token ids: no gradient's arrival reduces these units, but the end does.
  const TensorId first = runs_.front().units.front().reduce_in;
  const auto post = [&](Unit& unit, Ref previous) {
    post_backward(unit, previous);
    return unit.reduce_in != kNoTensor ? Ref{unit.reduce_in} : previous;
  };
  const Ref after_root = post(root_, {first, +1});
  post(embedding_, after_root);
  if (rules_.hold_outputs) b_.op("model.outputs", Phase::backward).release(end_.returned_logits);
  b_.close();
}

// Dense gradients of whole tables, the positions' first (the sum over the batch is what it reads).
// Returns the gradient of the table's rows.
TensorId StepWriter::embedding_gradients(TensorId d) {
  const TensorId d_rows = d_.embedding_width > 0 ? project_in_back(d) : d;
  const auto dense = [&](const ModuleNames& names, Unit* unit, std::int64_t rows, TensorId from,
                         std::int64_t ids, Bytes copied = {}) {
    unit_ = unit;
    const std::int64_t width = &names == &kEmbedding ? d_.table_width() : d_.hidden;
    const TensorId grad = begin(names, checked_multiply(rows, width), false);
    auto backward = b_.op(names.module, Phase::backward).read(from).write(grad);
    take_blocks(b_, backward, embedding_scratch(b_, ids, rows, width), copied);
    end(names, grad);
  };
  if (d_.embeds_positions() && parts_.train_positions) {
    TensorId summed = d;
    const bool counted = d_.position == PositionKind::counted;
    if (tokens_.sequences > 1 && !counted) {
      summed =
          b_.tensor("embed_positions.out.grad",
                    storage(Count(checked_multiply(tokens_.length, d_.hidden)), regime_.weight),
                    Category::temporaries);
      b_.op("embed_positions.out.grad", Phase::backward).read(d).write(summed);
    }
    dense(kPositions, &root_, parts_.position_rows, summed,
          counted ? tokens_.total() : tokens_.length);
    b_.op("position_ids", Phase::backward).release(front_.position_rows);  // saved for it
  }
  if (parts_.trains_types()) {
    dense(kTypes, &root_, d_.token_types, d, tokens_.total(), copied_type_ids());
    b_.op("token_type_ids", Phase::backward).release(front_.type_ids);  // saved for it
  }
  if (!parts_.train_embedding) return d_rows;
  if (d_.tied_head)
    tied_gradient(d_rows);
  else
    dense(kEmbedding, table_unit_, d_.vocab, d_rows, tokens_.total());
  return d_rows;
}

// Of a product, not a cast of one (autocast), nor what a loss made.
bool StepWriter::head_grad_is_view() const {
  return !regime_.casts_weights() && strategy_.loss != models::Loss::fused;
}

// The head's gradient has waited in the accumulation buffer. One of its own takes the embedding's
// in place; a view does not, and the sum is a third table.
void StepWriter::tied_gradient(TensorId d) {
  const std::int64_t elements = checked_multiply(d_.vocab, d_.table_width());
  const TensorId dense = b_.tensor(kEmbedding.weight_grad_new,
                                   storage(Count(elements), regime_.weight), Category::gradients);
  auto backward = b_.op(kEmbedding.module, Phase::backward).read(d).write(dense);
  take_blocks(b_, backward, embedding_scratch(b_, tokens_.total(), d_.vocab, d_.table_width()));
  unit_ = table_unit_;
  TensorId sum = end_.tied_grad;
  if (!head_grad_is_view()) {
    b_.op(kEmbedding.weight_grad, Phase::backward).read(dense).update(sum);
  } else {
    sum = begin(kEmbedding, elements, false);
    b_.op(kEmbedding.weight_grad, Phase::backward).read(dense).read(end_.tied_grad).write(sum);
  }
  end(kEmbedding, sum);
}

}  // namespace plimsoll::planner::pytorch
