// The ends of BERT: token types, the product before the head's, and its loss (transformers
// models/bert/modeling_bert.py).
#include "planner/stacks/pytorch/step.h"

namespace plimsoll::planner::pytorch {

using models::kNoGroup;

namespace {
const ModuleNames& kTypes = end_names().token_types;
const LinearNames& kTransform = end_names().head_transform;
const LinearNames& kHead = end_names().head;
constexpr const char *kSum = "embeddings.typed", *kActivated = "head_transform.act";
}  // namespace

Bytes StepWriter::id_buffers() const {
  return d_.token_types > 0 ? layer_.bytes(parts_.position_rows, DType::int64) * 2 : Bytes(0);
}

// The ids are gathered from a buffer of zeros for one sequence and expanded to all, so that the
// lookup copies them. DDP sends the buffers in one flat copy before a step's first forward.
void StepWriter::gather_token_types() {
  const bool sends =
      parallelism_ == DataParallelism::ddp || parallelism_ == DataParallelism::zero_redundancy;
  if (sends && micro_ == 0) b_.op("ddp.buffers", Phase::forward).scratch(id_buffers());
  front_.type_ids = b_.tensor("token_type_ids", storage(Count(tokens_.length), DType::int64),
                              Category::activations);
  b_.op("token_type_ids", Phase::forward).write(front_.type_ids);
}

void StepWriter::embed_token_types() {
  const std::int64_t n = checked_multiply(tokens_.total(), d_.hidden);
  const auto activation = [&](const char* name, std::int64_t values, DType dtype) {
    return b_.tensor(name, storage(Count(values), dtype), Category::activations);
  };
  front_.types = activation(kTypes.out, n, regime_.weight);
  b_.op(kTypes.module, Phase::forward)
      .read(front_.type_ids)
      .write(front_.types)
      .scratch(copied_type_ids());
  hidden_ = activation(kSum, n, regime_.weight);
  b_.op(kSum, Phase::forward).read(front_.embedded).read(front_.types).write(hidden_);
}

Bytes StepWriter::copied_type_ids() const {
  return tokens_.sequences > 1 ? layer_.bytes(tokens_.total(), DType::int64) : Bytes(0);
}

// BertEmbeddings.forward's locals.
void StepWriter::leave_embeddings() {
  b_.op("embeddings", Phase::forward)
      .release(leaf_input() ? kNoTensor : front_.embedded)
      .release(front_.type_ids)
      .release(front_.types)
      .release(front_.positions)
      .release(front_.norm.out);
  front_.embedded = front_.types = front_.positions = kNoTensor;
}

// BertPredictionHeadTransform: each result goes as its name is bound anew.
TensorId StepWriter::transform_head() {
  const std::int64_t n = checked_multiply(tokens_.total(), d_.hidden);
  layer_.linear_forward(kTransform, parts_.head_transform, {runs_.back().out, -1}, regime_.residual,
                        Category::activations, head_transform_);
  end_.activated = b_.tensor(kActivated, storage(Count(n), regime_.compute), Category::activations);
  b_.op(kActivated, Phase::forward).read(head_transform_.out).write(end_.activated);
  return end_.activated;
}

void StepWriter::transform_back(TensorId d) {
  const std::int64_t n = checked_multiply(tokens_.total(), d_.hidden);
  TensorId d_product = d;
  if (d_.head_transform) {
    d_product = b_.tensor("head_transform.out.grad", storage(Count(n), regime_.compute),
                          Category::temporaries);
    b_.op(kActivated, Phase::backward).read(d).read(head_transform_.out).write(d_product);
  }
  unit_ = norm_unit_;
  layer_.linear_backward(kTransform, parts_.head_transform, regime_.residual, final_grad(),
                         head_transform_, d_product, {},
                         {{runs_.back().out, -1}, {runs_.back().d_out, -1}, {}});
}

DType StepWriter::loss_dtype() const {
  return widens_logits() || regime_.autocast ? DType::fp32 : regime_.compute;
}

}  // namespace plimsoll::planner::pytorch
