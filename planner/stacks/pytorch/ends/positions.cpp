// Positions that are embedded or counted (transformers models/gpt2/modeling_gpt2.py,
// models/opt/modeling_opt.py).
#include "planner/stacks/pytorch/ends/embedding.h"

namespace plimsoll::planner::pytorch {

using models::PositionKind;

namespace {
const ModuleNames& kPositions = end_names().positions;
}  // namespace

// wpe sees positions of one sequence, OPT's table (whose first two rows are for padding) those of
// each; the sum with the tokens' is a new tensor.
void EmbeddingWriter::embed_positions() {
  const bool counted = d_.position == PositionKind::counted;
  const SymInt rows = counted ? tokens_.total() : tokens_.length;
  s_.front.position_rows =
      counted ? activation("position_rows", rows, DType::int64) : s_.front.position_ids;
  if (counted)
    b_.op("position_rows", Phase::forward)
        .read(s_.front.position_ids)
        .write(s_.front.position_rows);
  s_.front.positions =
      activation(kPositions.out, checked_multiply(rows, d_.hidden), regime_.weight);
  b_.op(kPositions.module, Phase::forward).read(s_.front.position_rows).write(s_.front.positions);
  if (d_.embedding_width > 0) project_in();
  const TensorId before = std::exchange(
      s_.hidden,
      activation("embeddings", checked_multiply(tokens_.total(), d_.hidden), regime_.weight));
  b_.op("embeddings", Phase::forward).read(before).read(s_.front.positions).write(s_.hidden);
}

// OPTDecoder.forward: a mask of ones in fp32; cumsum, its product with the mask, - 1 and the cast:
// at most three in fp32, or two beside the result. BLOOM makes its biases of the mask.
void EmbeddingWriter::count_positions() {
  const SymInt t = tokens_.all_keys();
  s_.front.padding_mask = activation("padding_mask", t, DType::fp32);
  b_.op("padding_mask", Phase::forward).write(s_.front.padding_mask);
  if (d_.position == PositionKind::alibi) return alibi_biases();
  s_.front.position_ids = activation("position_ids", t, DType::int64);
  b_.op("position_ids", Phase::forward)
      .read(s_.front.padding_mask)
      .write(s_.front.position_ids)
      .scratch(layer_.fp32(t) * 2);
}

// OPT-350m's, behind the embedding. What it makes takes the name of what it read.
void EmbeddingWriter::project_in() {
  layer_.linear_forward(end_names().project_in, parts_.project_in, {s_.front.looked_up},
                        regime_.weight, Category::activations, s_.project_in);
  s_.front.embedded = s_.hidden = s_.project_in.out;
}

}  // namespace plimsoll::planner::pytorch
