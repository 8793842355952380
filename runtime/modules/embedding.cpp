#include "runtime/modules/embedding.h"

#include "kernels/number.h"
#include "models/decisions/unit_names.h"
#include "runtime/modules/sites.h"

namespace plimsoll::runtime {

namespace names = models::decisions;

Embedding::Embedding(Worker& worker, const ModelSettings& settings,
                     const EmbeddingParameters& parameters)
    : worker_(worker), settings_(settings), parameters_(parameters) {}

kernels::Dropout Embedding::dropout() const {
  return dropout_at(worker_, settings_.decoder.embedding_dropout, kEmbeddingStream,
                    checked_multiply(worker_.length, settings_.decoder.hidden));
}

// Gemma's is rounded as the stream is.
float Embedding::scale() const {
  const float scale = settings_.embedding_scale;
  if (settings_.decoder.embedding_scale != models::EmbeddingScale::module) return scale;
  const DType dtype = worker_.regime.compute;
  if (dtype == DType::bf16) return widened(kernels::narrowed<kernels::Bf16>(scale));
  if (dtype == DType::fp16) return widened(kernels::narrowed<kernels::Fp16>(scale));
  return scale;
}

// The rows of a table of positions, or of its gradient, that tokens read.
template <class View>
View Embedding::from_first_position(View table) const {
  const std::int64_t first = settings_.decoder.first_position();
  return table ? table.rows(first, table.shape[0] - first) : table;
}

Tensor Embedding::forward(ConstTensorView ids) {
  Op op(worker_, names::kEmbedding);
  Tensor out = op.make(names::kEmbeddingOut, Category::activations,
                       {ids.elements(), settings_.decoder.hidden});
  worker_.kernels.embedding_forward(ids, parameters_.tokens.value(),
                                    from_first_position(parameters_.positions.value()),
                                    worker_.length, dropout(), out.view());
  if (scale() != 1) worker_.kernels.scale(scale(), out.view());
  return out;
}

void Embedding::backward(ConstTensorView ids, Tensor d) {
  Op op(worker_, names::kEmbedding, Phase::backward);
  if (scale() != 1) worker_.kernels.scale(scale(), d.view());
  const TensorView tokens = parameters_.tokens.gradient();
  worker_.kernels.embedding_backward(
      ids, worker_.length, dropout(), d.view(), tokens,
      from_first_position(parameters_.positions.gradient()),
      tokens ? worker_.scratch(DType::int32, {4, ids.elements()}) : TensorView{});
  op.consume(std::move(d));
}

Bytes Embedding::workspace() const {
  if (!parameters_.tokens.trains()) return {};
  return storage(Count(checked_multiply(4, worker_.tokens())), DType::int32);
}

}  // namespace plimsoll::runtime
