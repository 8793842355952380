// BERT's token types (transformers models/bert/modeling_bert.py).
#include "planner/stacks/pytorch/ends/embedding.h"

namespace plimsoll::planner::pytorch {

namespace {
const ModuleNames& kTypes = end_names().token_types;
constexpr const char* kSum = "embeddings.typed";
}  // namespace

// The ids are gathered from a buffer of zeros for one sequence and expanded to all, so that the
// lookup copies them.
void EmbeddingWriter::gather_token_types() {
  s_.front.type_ids =
      b_.tensor("token_type_ids", storage(tokens_.length, DType::int64), Category::activations);
  b_.op("token_type_ids", Phase::forward).write(s_.front.type_ids);
}

void EmbeddingWriter::embed_token_types() {
  const SymInt n = checked_multiply(tokens_.total(), d_.hidden);
  s_.front.types = activation(kTypes.out, n, regime_.weight);
  b_.op(kTypes.module, Phase::forward)
      .read(s_.front.type_ids)
      .write(s_.front.types)
      .scratch(copied_type_ids());
  s_.hidden = activation(kSum, n, regime_.weight);
  b_.op(kSum, Phase::forward).read(s_.front.embedded).read(s_.front.types).write(s_.hidden);
}

SymBytes EmbeddingWriter::copied_type_ids() const {
  return tokens_.sequences > 1 ? layer_.bytes(tokens_.total(), DType::int64) : SymBytes();
}

// BertEmbeddings.forward's locals.
void EmbeddingWriter::leave() {
  b_.op("embeddings", Phase::forward)
      .release(s_.leaf_input() ? kNoTensor : s_.front.embedded)
      .release(s_.front.type_ids)
      .release(s_.front.types)
      .release(s_.front.positions)
      .release(s_.front.norm.out);
  s_.front.embedded = s_.front.types = s_.front.positions = kNoTensor;
}

}  // namespace plimsoll::planner::pytorch
