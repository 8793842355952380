// A layer's norms, activation and sums, and the order of it all.
#include <utility>

#include "planner/stacks/plimsoll/layer_writer.h"

namespace plimsoll::planner::plimsoll_stack {

using models::NormKind;
using models::decisions::LayerOpKind;

LayerWriter::LayerWriter(ProgramBuilder& builder, const models::Decoder& decoder,
                         const Regime& regime, const models::Strategy& strategy, Tokens tokens)
    : b_(builder),
      d_(decoder),
      regime_(regime),
      keeps_(models::decisions::keeps_of(strategy.recompute.kind)),
      attention_kind_(strategy.attention),
      adapter_dropout_(strategy.lora ? strategy.lora->dropout : 0),
      tokens_(tokens),
      total_(tokens.total()) {}

void LayerWriter::read(OpBuilder& op, ValueId id) {
  if (id == models::kBlockInput)
    op.touch(input_.tensor, input_.delta, input_.beyond);
  else if (id != models::kNoValue)
    op.read(value(id));
}

TensorId LayerWriter::make_value(ValueId id) {
  if (id == layer_->ops->last_branch && output_ != kNoTensor) return output_;
  return make(about(id).name, about(id).width);
}

// Norms -------------------------------------------------------------------------------------------

// In place where its input need not be saved, and nobody else reads it.
void LayerWriter::norm(const LayerOp& at, std::size_t place) {
  const ValueId x = at.in[0].value;
  const bool leaves = wants(at.out);
  if (at.may_replace && !leaves) {
    op(at.norm.norm).update(value(x));
    value(at.out) = value(x);
    return;
  }
  const NormPart& part = layer_->norm(at.module);
  const std::int64_t rows = about(x).width / part.width;
  if (leaves)
    t_->beside[place] = make_statistics(
        at.norm.statistics, part.kind == NormKind::layer_norm ? checked_multiply(2, rows) : rows);
  value(at.out) = make_value(at.out);
  OpBuilder norm = op(at.norm.norm);
  read(norm, x);
  norm.write(value(at.out)).write(t_->beside[place]);
}

// A result that selective recomputation dropped.
void LayerWriter::norm_again(const LayerOp& at, std::size_t place) {
  if (made_again_[place]) return;  // for another of its readers
  made_again_[place] = true;
  value(at.out) = temporary(at.norm.out, about(at.out).width);
  OpBuilder norm = b_.op(at.norm.norm, Phase::recompute);
  read(norm, at.in[0].value);
  norm.read(t_->beside[place]).write(value(at.out));
}

// Adds to the gradient that its input has; else the result's gradient becomes it, unless that is
// the stream's, too.
void LayerWriter::norm_backward(const LayerOp& at, std::size_t place) {
  if (!wants(at.out)) return;
  const ValueId x = at.in[0].value;
  const bool shared = shared_[static_cast<std::size_t>(at.out)], adds = d(x) != kNoTensor;
  if (!adds && shared && wants(x)) d(x) = temporary(about(x).gradient, about(x).width);
  OpBuilder norm = op(at.norm.norm);
  read(norm, x);
  norm.read(t_->beside[place]);
  if (adds || shared || !wants(x))
    norm.read(d(at.out)).update(d(x));
  else
    norm.update(d(x) = d(at.out));
  const bool trains = layer_->norm(at.module).trains();
  if (trains) norm.update(gradients_);
  // Sums by columns read the gradient and the input once more.
  const int passes = (at.may_replace ? 3 : 4) + (trains ? 2 : 0);
  b_.work().moves(passes * bytes(about(x).width, regime_.compute).real());
}

// Activation and sums -----------------------------------------------------------------------------

// What is saved, or is columns of a wider tensor, takes a new tensor; otherwise the result takes
// its input's place.
void LayerWriter::activation(const LayerOp& at) {
  const ValueId x = at.in[0].value, factor = at.in[1].value;
  const TensorId other = factor == models::kNoValue || factor == x ? kNoTensor : value(factor);
  if (wants(at.out) || !at.may_replace) {
    value(at.out) = make(about(at.out).name, about(at.out).width);
    op(at.name).read(value(x)).read(other).write(value(at.out));
  } else {
    value(at.out) = value(x);
    op(at.name).update(value(x)).read(other);
  }
}

// What it read becomes its gradients, and the result's gradient the result.
void LayerWriter::activation_backward(const LayerOp& at) {
  if (!wants(at.out)) return;
  OpBuilder activation = op(at.name);
  activation.update(d(at.out));
  const ValueId x = at.in[0].value, factor = at.in[1].value;
  activation.update(d(x) = value(x));
  if (factor != models::kNoValue && factor != x) activation.update(d(factor) = value(factor));
  value(at.out) = d(at.out);
}

// The branch's tensor becomes the sum.
void LayerWriter::residual(const LayerOp& at) {
  const TensorId branch = value(at.in[1].value);
  OpBuilder sum = op(at.name);
  read(sum, at.in[0].value);
  sum.update(branch);
  value(at.out) = branch;
}

// The stream's gradient is the sum's, and the branch's too; behind dropout or a scale that is a
// copy.
void LayerWriter::residual_backward(const LayerOp& at) {
  const ValueId stream = at.in[0].value, branch = at.in[1].value;
  if (wants(stream) && d(stream) != kNoTensor) {
    // Another reader of the stream has left a gradient of it; the branch's takes its place.
    op(at.name).update(d(at.out)).update(d(stream));
    d(branch) = std::exchange(d(stream), d(at.out));
    return;
  }
  if (wants(stream)) d(stream) = d(at.out);
  if (!wants(branch)) return;
  d(branch) = d(at.out);
  const bool copies = at.dropout > 0 || at.scaled;
  shared_[static_cast<std::size_t>(branch)] = wants(stream) && !copies;
  if (!copies) return;
  d(branch) = temporary(
      at.scaled ? models::decisions::kResidualScaleOut : models::decisions::kResidualDropoutOut,
      about(branch).width);
  op(at.scaled ? models::decisions::kResidualScale : models::decisions::kResidualDropout)
      .read(d(at.out))
      .write(d(branch));
}

// Layer -------------------------------------------------------------------------------------------

void LayerWriter::forward(Phase phase, const OwnLayer& layer, const RequiresGrad& gradients,
                          Ref input, TensorId output, bool to_last, LayerTensors& t) {
  phase_ = phase;
  layer_ = &layer;
  gradients_of_ = &gradients;
  t = {};
  t_ = &t;
  input_ = input;
  output_ = output;
  const auto end = to_last ? static_cast<std::size_t>(gradients.last + 1) : layer.ops->ops.size();
  for (std::size_t i = 0; i < end; ++i) {
    const LayerOp& at = layer.ops->ops[i];
    switch (at.kind) {
      case LayerOpKind::norm:
        norm(at, i);
        break;
      case LayerOpKind::gemms:
        gemms(at, !to_last || i + 1 < end);
        break;
      case LayerOpKind::rotary:
        rotary(at);
        break;
      case LayerOpKind::attention:
        attention(at, i);
        break;
      case LayerOpKind::activation:
        activation(at);
        break;
      case LayerOpKind::residual:
        residual(at);
        break;
      case LayerOpKind::experts:
        experts(at, !to_last || i + 1 < end);
        break;
    }
  }
}

void LayerWriter::backward(const OwnLayer& layer, Ref input, TensorId d_output, TensorId gradients,
                           LayerTensors& t) {
  phase_ = Phase::backward;
  gradients_ = gradients;
  layer_ = &layer;
  gradients_of_ = &layer.gradients;
  t_ = &t;
  input_ = input;
  d_of_.fill(kNoTensor);
  shared_.reset();
  made_again_.reset();
  d(layer.ops->output) = d_output;
  for (std::size_t i = layer.ops->ops.size(); i-- > 0;) {
    const LayerOp& at = layer.ops->ops[i];
    const Waiting waiting = std::exchange(waiting_, {});
    switch (at.kind) {
      case LayerOpKind::norm:
        norm_backward(at, i);
        break;
      case LayerOpKind::gemms:
        gemms_backward(at);
        break;
      case LayerOpKind::rotary:
        rotary_backward(at);
        break;
      case LayerOpKind::attention:
        attention_backward(at, i);
        break;
      case LayerOpKind::activation:
        activation_backward(at);
        break;
      case LayerOpKind::residual:
        residual_backward(at);
        break;
      case LayerOpKind::experts:
        experts_backward(at);
        break;
    }
    if (waiting.linear != nullptr) wait_over(waiting);
  }
}

}  // namespace plimsoll::planner::plimsoll_stack
