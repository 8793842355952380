// A mixture of experts: rows of the tokens' experts, as many as there are whatever the router says.
#include "planner/stacks/plimsoll/layer_writer.h"

namespace plimsoll::planner::plimsoll_stack {

using models::decisions::ExpertsNames;

// Of the op that was written last: rows with a matrix [hidden, width] of each expert.
void LayerWriter::experts_gemm(const ExpertsPart& part, std::int64_t width) {
  gemm(checked_multiply(total_, part.active), width, part.hidden);
}

// Without `results` it ends with what backward reads.
void LayerWriter::experts(const LayerOp& at, bool results) {
  const ExpertsPart& part = layer_->experts(at.module);
  const ExpertsNames& names = at.experts;
  const ValueId logits = at.in[0].value, x = at.in[1].value;
  const bool product =
      models::decisions::experts_gradients(*gradients_of_, at,
                                           {.weight = part.train_gate_up, .down = part.train_down})
          .product;
  RoutedTensors& routed = t_->routed;
  routed.scores = make_statistics(names.scores, part.active);
  const SymInt pairs = checked_multiply(3 * part.active, total_);
  routed.routes = b_.tensor(names.routes, storage(pairs + (part.experts + 1), DType::int32),
                            Category::activations);
  op(names.route).read(value(logits)).write(routed.scores).write(routed.routes);
  routed.gate_up = make(names.gate_up.out, checked_multiply(2 * part.active, part.ffn));
  OpBuilder first = op(names.gate_up.gemm);
  read(first, x);
  first.read(routed.routes).write(routed.gate_up);
  experts_gemm(part, 2 * part.ffn);
  if (!results && product) return;
  routed.product = make(names.product, checked_multiply(part.active, part.ffn));
  op(names.act).read(routed.routes).read(routed.gate_up).read(routed.scores).write(routed.product);
  if (!results) return;
  const std::int64_t width = checked_multiply(part.active, part.hidden);
  const TensorId rows = make(names.down.out, width);
  op(names.down.gemm).read(routed.routes).read(routed.product).write(rows);
  experts_gemm(part, part.ffn);
  value(at.out) = make_value(at.out);
  op(names.sum).read(routed.routes).read(rows).write(value(at.out));
}

void LayerWriter::experts_backward(const LayerOp& at) {
  if (!wants(at.out)) return;
  const ExpertsPart& part = layer_->experts(at.module);
  const ExpertsNames& names = at.experts;
  const ValueId logits = at.in[0].value, x = at.in[1].value;
  RoutedTensors& routed = t_->routed;
  TensorId d_scores = kNoTensor;
  if (models::decisions::experts_gradients(*gradients_of_, at,
                                           {.weight = part.train_gate_up, .down = part.train_down})
          .product) {
    const TensorId d_p = temporary(names.down.input_grad, checked_multiply(part.active, part.ffn));
    op(names.down.input_grad).read(routed.routes).read(d(at.out)).write(d_p);
    experts_gemm(part, part.ffn);
    if (wants(logits))
      d_scores = b_.tensor(names.scores_grad, bytes(part.active, models::decisions::kStatistics),
                           Category::temporaries);
    op(names.act)
        .read(routed.routes)
        .read(routed.scores)
        .update(routed.gate_up)
        .update(d_p)
        .write(d_scores);
    routed.product = d_p;
  }
  if (part.train_down) {
    op(names.down.weight_grad)
        .read(routed.routes)
        .read(d(at.out))
        .read(routed.product)
        .update(gradients_);
    experts_gemm(part, part.ffn);
  }
  if (part.train_gate_up) {
    const auto producer = static_cast<std::size_t>(about(x).producer);
    if (gradients_of_->makes_again(x)) norm_again(layer_->ops->ops[producer], producer);
    OpBuilder weight = op(names.gate_up.weight_grad);
    read(weight, x);
    weight.read(routed.routes).read(routed.gate_up).update(gradients_);
    experts_gemm(part, 2 * part.ffn);
  }
  if (wants(x)) {
    const TensorId rows =
        temporary(names.gate_up.input_grad, checked_multiply(part.active, part.hidden));
    op(names.gate_up.input_grad).read(routed.routes).read(routed.gate_up).write(rows);
    experts_gemm(part, 2 * part.ffn);
    if (d(x) == kNoTensor) d(x) = temporary(about(x).gradient, about(x).width);
    op(names.sum).read(routed.routes).read(rows).update(d(x));
  }
  if (!wants(logits)) return;
  d(logits) = temporary(about(logits).gradient, about(logits).width);
  OpBuilder route = op(names.route);
  if (!at.normalizes) route.read(value(logits));
  route.read(routed.routes).read(routed.scores).read(d_scores).write(d(logits));
}

}  // namespace plimsoll::planner::plimsoll_stack
