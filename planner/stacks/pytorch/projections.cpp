// OPT's counted positions, and OPT-350m's projections behind the embedding and before the head
// (transformers models/opt/modeling_opt.py, OPTDecoder.forward).
#include "planner/stacks/pytorch/step.h"

namespace plimsoll::planner::pytorch {

using models::PositionKind;

namespace {
const LinearNames& kProjectIn = end_names().project_in;
const LinearNames& kProjectOut = end_names().head_transform;
}  // namespace

// What it makes takes the name of what it read.
void StepWriter::project_in() {
  layer_.linear_forward(kProjectIn, parts_.project_in, {front_.looked_up}, regime_.weight,
                        Category::activations, project_in_);
  front_.embedded = hidden_ = project_in_.out;
}

TensorId StepWriter::project_in_back(TensorId d) {
  if (!parts_.project_in.trains() && !parts_.train_embedding && !leaf_input()) return kNoTensor;
  if (regime_.residual != regime_.compute) {
    const Count values(checked_multiply(tokens_.total(), d_.hidden));
    const TensorId wide = std::exchange(
        d,
        b_.tensor("project_in.out.grad", storage(values, regime_.compute), Category::temporaries));
    b_.op("project_in.out.grad", Phase::backward).read(wide).write(d);
  }
  unit_ = &root_;
  return layer_
      .linear_backward(kProjectIn, parts_.project_in, regime_.weight,
                       parts_.train_embedding || leaf_input(), project_in_, d, {},
                       {{front_.looked_up}, {}, {}})
      .tensor;
}

void StepWriter::project_out() {
  layer_.linear_forward(kProjectOut, parts_.head_transform, {runs_.back().out, -1},
                        regime_.residual, Category::activations, head_transform_);
  final_norm_ = {};
  final_norm_.out = head_transform_.out;
}

// OPTDecoder.forward: a mask of ones in fp32; cumsum, its product with the mask, - 1 and the cast:
// at most three in fp32, or two beside the result. BLOOM makes its biases of the mask.
void StepWriter::count_positions() {
  const std::int64_t t = tokens_.total();
  const auto activation = [&](const char* name, DType dtype) {
    return b_.tensor(name, storage(Count(t), dtype), Category::activations);
  };
  front_.padding_mask = activation("padding_mask", DType::fp32);
  b_.op("padding_mask", Phase::forward).write(front_.padding_mask);
  if (d_.position == PositionKind::alibi) return alibi_biases();
  front_.position_ids = activation("position_ids", DType::int64);
  b_.op("position_ids", Phase::forward)
      .read(front_.padding_mask)
      .write(front_.position_ids)
      .scratch(layer_.fp32(t) * 2);
}

// The dtype of what the head reads.
DType StepWriter::head_input() const {
  return d_.embedding_width > 0 ? regime_.compute : layer_.norm_out(regime_.residual);
}

}  // namespace plimsoll::planner::pytorch
