#include "planner/stacks/pytorch/ends/embedding.h"

namespace plimsoll::planner::pytorch {

using models::EmbeddingScale;
using models::kNoGroup;
using models::PositionKind;

namespace {
const ModuleNames& kEmbedding = end_names().tokens;
}  // namespace

void EmbeddingWriter::forward() {
  b_.open(kNoGroup, false, s_.times);
  layer_.set(Phase::forward, true);
  wrapper_.before_forward(s_.root, {});
  wrapper_.before_forward(s_.embedding, {s_.root.gather_forward});
  s_.front = {};
  s_.cos = s_.sin = s_.masks = {kNoTensor, kNoTensor};
  if (parts_.prefix_tokens > 0) put_prefix();
  if (d_.token_types > 0) gather_token_types();
  look_up();
  if (s_.embedding.reshards) wrapper_.after_forward(s_.embedding);
  s_.hidden = s_.front.embedded;
  if (d_.token_types > 0) {
    embed_token_types();
  } else if (!d_.counts_positions() && !own_decoder() && tokens_.rows != models::Rows::flattened) {
    s_.front.position_ids = activation("position_ids", tokens_.length, DType::int64);
    auto ids = b_.op("position_ids", Phase::forward).write(s_.front.position_ids);
    // arange, to which the cache's length is added: elsewhere what follows takes more.
    if (tokens_.rows == models::Rows::padded || tokens_.prefix > 0)
      ids.scratch(layer_.bytes(tokens_.length, DType::int64));
  }
  const bool embeds = d_.embeds_positions();
  if (embeds && !d_.masks_first) embed_positions();
  if (d_.embedding_norm) normalize();
  if (d_.counts_positions()) count_positions();
  const bool own_module = d_.token_types > 0;  // has returned when masks are made
  if (!regime_.patch.own_decoder && !own_module) masks();
  if (embeds && d_.masks_first) embed_positions();
  if (d_.embedding_dropout > 0) dropout();
  if (own_module) leave(), masks();
  if (d_.position == PositionKind::rope && !own_decoder()) rotary_tables();
  layer_.set_rotary(s_.cos, s_.sin);
  layer_.set_masks(s_.masks, s_.front.alibi);
  b_.close();
}

void EmbeddingWriter::look_up() {
  if (vocab_parallel()) return look_up_vocab_parallel();
  const SymInt values = checked_multiply(s_.text.total(), d_.table_width());
  s_.front.looked_up = s_.front.embedded = activation(kEmbedding.out, values, regime_.weight);
  b_.op(kEmbedding.module, Phase::forward).write(s_.front.embedded);
  b_.work().moves(2 * layer_.bytes(values, regime_.weight).real());
  if (d_.embedding_scale == EmbeddingScale::module) {
    scale(s_.text.total());
    s_.front.looked_up = s_.front.embedded;
  }
  if (parts_.virtual_tokens > 0) put_prompt();
  if (d_.embedding_scale == EmbeddingScale::model) scale(tokens_.total());
}

void EmbeddingWriter::scale(SymInt tokens) {
  const SymInt n = checked_multiply(tokens, d_.hidden);
  const TensorId rows =
      std::exchange(s_.front.embedded, activation(kScaledEmbedding, n, regime_.weight));
  b_.op(kScaledEmbedding, Phase::forward).read(rows).write(s_.front.embedded);
}

void EmbeddingWriter::normalize() {
  s_.front.sum = s_.hidden;
  layer_.norm_forward(end_names().embedding_norm, parts_.embedding_norm, {s_.hidden},
                      {tokens_.total(), regime_.weight, s_.embedding_grad()}, s_.front.norm);
  s_.hidden = s_.front.norm.out;
}

void EmbeddingWriter::dropout() {
  const SymInt n = checked_multiply(tokens_.total(), d_.hidden);
  s_.front.dropout_mask = b_.tensor("embeddings.dropout.mask", SymBytes(n), Category::activations);
  const TensorId dropped = activation("embeddings.dropout", n, regime_.embedded);
  b_.op("embeddings.dropout", Phase::forward)
      .read(s_.hidden)
      .write(s_.front.dropout_mask)
      .write(dropped);
  s_.hidden = dropped;
}

}  // namespace plimsoll::planner::pytorch
