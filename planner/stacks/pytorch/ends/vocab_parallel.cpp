// A token table whose rows are divided among ranks that share each sequence: RowwiseParallel of an
// nn.Embedding with output_layouts=Shard(1).
//
// torch/distributed/tensor: placement_types.py, _MaskPartial, looks up the ids of other ranks' rows
// as row 0 and puts zeros in their place; _ops/_embedding_ops.py makes the gradient of the whole
// table, of which each rank keeps its rows when the backward has ended.
#include "planner/stacks/pytorch/ends/embedding.h"
#include "planner/stacks/pytorch/sequence_parallel.h"

namespace plimsoll::planner::pytorch {

namespace {
const ModuleNames& kEmbedding = end_names().tokens;
const SequenceNames& kScattered = end_names().embedded;
}  // namespace

void EmbeddingWriter::look_up_vocab_parallel() {
  const SymInt ids = tokens_.total(), values = checked_multiply(ids, d_.hidden);
  const auto made = [&](const char* name, DType dtype) {
    return b_.tensor(name, layer_.bytes(ids, dtype), Category::temporaries);
  };
  const auto op = [&](const char* name) { return b_.op(name, Phase::forward); };
  const TensorId below = made("embed_tokens.below", DType::boolean);
  op("embed_tokens.below").write(below);
  const TensorId above = made("embed_tokens.above", DType::boolean);
  op("embed_tokens.above").write(above);
  const TensorId others = made("embed_tokens.others", DType::boolean);
  op("embed_tokens.others").read(below).read(above).write(others);
  const TensorId copied = made("embed_tokens.ids.copy", DType::int64);
  op("embed_tokens.ids").write(copied);
  const TensorId own = made("embed_tokens.ids", DType::int64);
  op("embed_tokens.ids").read(copied).read(others).write(own);
  const TensorId rows =
      b_.tensor(kEmbedding.out, layer_.bytes(values, regime_.weight), Category::temporaries);
  op(kEmbedding.module).read(own).write(rows);
  b_.work().moves(2 * layer_.bytes(values, regime_.weight).real());
  op(kEmbedding.module).update(rows).read(others);
  s_.front.looked_up = s_.front.embedded = SequenceWriter(layer_).scatter(
      kScattered.by_rank, kScattered.out, rows, values, regime_.weight, Category::activations);
}

// The whole table's gradient, and this rank's rows of it.
void EmbeddingWriter::vocab_parallel_gradient(TensorId d) {
  const TensorId whole = SequenceWriter(layer_).gather(
      kScattered.grad_by_rank, kScattered.grad, {d}, checked_multiply(tokens_.total(), d_.hidden),
      regime_.residual, Category::temporaries);
  const SymInt rows = checked_multiply(d_.vocab, d_.sequence_parts);
  const TensorId all = b_.tensor(kEmbedding.weight_grad_low,
                                 layer_.bytes(checked_multiply(rows, d_.hidden), regime_.weight),
                                 Category::temporaries);
  auto backward = b_.op(kEmbedding.module, Phase::backward).read(whole).write(all);
  take_blocks(b_, backward, embedding_scratch(b_, tokens_.total(), rows, d_.hidden));
  s_.unit = s_.table_unit;
  const TensorId own = wrapper_.begin(kEmbedding, checked_multiply(d_.vocab, d_.hidden), false);
  b_.op(kEmbedding.weight_grad, Phase::backward).read(all).write(own);
  wrapper_.end(kEmbedding, own);
}

}  // namespace plimsoll::planner::pytorch
