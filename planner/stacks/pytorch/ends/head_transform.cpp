// What stands between the layers and the head: BERT's GEMM, activation and norm, OPT-350m's
// projection (transformers models/bert/modeling_bert.py, models/opt/modeling_opt.py).
#include "planner/stacks/pytorch/ends/head.h"

namespace plimsoll::planner::pytorch {

namespace {
const LinearNames& kTransform = end_names().head_transform;
constexpr const char* kActivated = "head_transform.act";
}  // namespace

// BertPredictionHeadTransform: each result goes as its name is bound anew.
TensorId HeadWriter::transform_head() {
  const SymInt n = checked_multiply(tokens_.total(), d_.hidden);
  layer_.linear_forward(kTransform, parts_.head_transform, {s_.runs.back().out, -1},
                        regime_.residual, Category::activations, s_.head_transform);
  s_.end.activated = b_.tensor(kActivated, storage(n, regime_.compute), Category::activations);
  b_.op(kActivated, Phase::forward).read(s_.head_transform.out).write(s_.end.activated);
  return s_.end.activated;
}

void HeadWriter::transform_back(TensorId d) {
  const SymInt n = checked_multiply(tokens_.total(), d_.hidden);
  TensorId d_gemm = d;
  if (d_.head_transform) {
    d_gemm =
        b_.tensor("head_transform.out.grad", storage(n, regime_.compute), Category::temporaries);
    b_.op(kActivated, Phase::backward).read(d).read(s_.head_transform.out).write(d_gemm);
  }
  s_.unit = s_.norm_unit;
  layer_.linear_backward(kTransform, parts_.head_transform, regime_.residual, s_.final_grad(),
                         s_.head_transform, d_gemm, {},
                         {{s_.runs.back().out, -1}, {s_.runs.back().d_out, -1}, {}});
}

void HeadWriter::project_out() {
  layer_.linear_forward(kTransform, parts_.head_transform, {s_.runs.back().out, -1},
                        regime_.residual, Category::activations, s_.head_transform);
  s_.final_norm = {};
  s_.final_norm.out = s_.head_transform.out;
}

// The dtype of what the head reads.
DType HeadWriter::head_input() const {
  return d_.embedding_width > 0 ? regime_.compute : layer_.norm_out(regime_.residual);
}

}  // namespace plimsoll::planner::pytorch
