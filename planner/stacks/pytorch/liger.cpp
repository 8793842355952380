// Kernels written in Triton in a layer: Liger's (liger_kernel 0.8.5, ops/) and fms-acceleration's
// (kernels/unsloth/). Each is one node of autograd, whose allocations are Python's.
#include "planner/kernels_of_op.h"
#include "planner/stacks/pytorch/block_writer.h"

namespace plimsoll::planner::pytorch {

using models::Access;
using models::ValueId;

// ops/rms_norm.py, rms_norm_forward: the result in x's dtype, and 1/rms of each row in fp32, which
// is kept beside x itself.
void BlockWriter::norm_forward(const ModuleNames& names, const NormPart& part, Ref input,
                               const NormInput& x, TapeSaved& s, bool stops, Ref into) {
  if (x.kernel == NormKernel::eager)
    return AttentionWriter::norm_forward(names, part, input, x, s, stops, into);
  s = {};
  const SymInt values = checked_multiply(x.rows, part.width);
  const bool made_here = into.none() && !stops;
  if (made_here) s.out = make(names.out, values, x.dtype);
  const bool keeps = saves_ && (x.grad || part.trains());
  if (keeps) s.kept[0] = make(names.statistics, x.rows, DType::fp32);
  if (x.copies) s.kept[1] = make(names.input_layout, values, x.dtype);
  auto norm = op(names.module);
  read(norm, input).write(s.kept[1]).write(s.out);
  write(norm, stops ? Ref{} : into).write(s.kept[0]);
  if (stops) norm.scratch(bytes(values, x.dtype));
  if (!keeps) norm.scratch(fp32(x.rows));
}

// rms_norm_backward: a row of partial sums of the weight's gradient from each multiprocessor, their
// sum, and its cast. What flows past is added to the input's gradient, which keeps the result's
// memory or takes its own.
Ref BlockWriter::liger_norm_backward(const ModuleNames& names, const NormPart& part,
                                     const NormInput& x, const TapeSaved& s, Ref d_out,
                                     TensorId residual, const Place& at) {
  unpack();
  const SymInt values = checked_multiply(x.rows, part.width);
  const bool in_place = x.kernel == NormKernel::liger_in_place;
  const Ref d_in = in_place         ? d_out
                   : at.into.none() ? Ref{temporary(names.input_grad, values, x.dtype)}
                                    : at.into;
  const bool trains = part.train_weight && regime_.patch.norm_gradients;
  const TensorId d_weight = trains ? sink_->begin(names, part.width) : kNoTensor;
  auto norm = op(names.module);
  if (!in_place) read(norm, d_out);
  norm.touch(d_in.tensor, d_in.delta, d_in.beyond, in_place ? Access::update : Access::write);
  read(norm, x.copies ? Ref{s.kept[1]} : at.input).read(s.kept[0]).write(d_weight);
  KernelsOfOp kernels(b_);  // what is not dropped is held to the end
  if (x.copies) kernels.take(bytes(values, x.dtype));
  if (trains) kernels.take(fp32(checked_multiply(rules_.gpu.count, part.width)));
  if (!in_place) {
    kernels.birth(d_in.tensor != kNoTensor ? d_in.tensor : d_in.beyond, bytes(values, x.dtype));
  }
  if (trains) {
    const bool casts = regime_.norm != DType::fp32;
    const auto sum = casts ? kernels.take(fp32(part.width)) : -1;
    kernels.birth(d_weight, bytes(part.width, regime_.norm));
    if (casts) kernels.drop(sum);
  }
  kernels.finish(norm);
  ModuleWriter::release(norm, at.held);
  if (d_weight != kNoTensor) sink_->end(names, d_weight);
  if (residual != kNoTensor)
    op(names.grad_layout)
        .read(residual)
        .touch(d_in.tensor, d_in.delta, d_in.beyond, Access::update);
  return d_in;
}

// Unsloth's in a reentrant checkpoint, whose frame holds the gradient of the layer's result: the
// first sum with it is a new tensor, which the second is added to. It is that of the layer's input.
void BlockWriter::stream_norm_back(const NodePlan& at, const LayerSaved& s) {
  const ValueId in = at.node->in[0];
  const Ref d{gradient(at.node->out[0]).tensor};
  const bool second = gradient(in).of_input;
  liger_norm_backward(*at.norm_names, *at.norm, norm_input(at), s.norms[at.place], d, kNoTensor,
                      {value(s, in), {}, frame()});
  auto add = op(at.norm_names->grad_layout).read(d.tensor);
  if (!second) add.read(gradient(in).tensor);
  add.touch(d_input_.tensor, d_input_.delta, d_input_.beyond,
            second ? Access::update : Access::write);
  gradient(in) = {.of_input = true};
}

void BlockWriter::liger_norm_back(const NodePlan& at, Ref d_input, const LayerSaved& s) {
  if (regime_.patch.sums_apart && plan_->value(at.node->in[0]).stream)
    return stream_norm_back(at, s);
  unpack();  // its input is a recomputed one
  const ValueId in = at.node->in[0];
  const TensorId made = gradient(at.node->out[0]).tensor;
  const Place place = place_of(at, d_input, s);
  const Ref d_out = made == kNoTensor ? place.into : Ref{made};
  const Ref d = liger_norm_backward(*at.norm_names, *at.norm, norm_input(at), s.norms[at.place],
                                    d_out, gradient(in).tensor, place);
  gradient(in) = {d.tensor, false, norm_input(at).copies ? at.norm_names->input_grad_low : nullptr};
}

// ops/rope.py: queries and keys are turned where they are, if each token's heads stand together.
void BlockWriter::liger_rotary(const NodePlan& at, LayerSaved& s) {
  const models::ValueList &in = at.node->in, &out = at.node->out;
  const auto copies = [&](ValueId id) {
    return regime_.patch.heads_first && plan_->value(id).width != d_.head_dim;
  };
  for (std::size_t i = 0; i < in.size(); ++i)
    s.of(out[i]) = copies(in[i]) ? make(operand(at, i).laid_out, values_of(in[i]), dtype_of(in[i]))
                                 : s.of(in[i]);
  auto turn = op(at.attention_names->module);
  for (std::size_t i = 0; i < in.size(); ++i) {
    turn.read(copies(in[i]) ? s.of(in[i]) : kNoTensor);
    turn.touch(s.of(out[i]), 0, kNoTensor, copies(in[i]) ? Access::write : Access::update);
  }
  const auto operands = rotary_operands(kNoTensor);
  turn.read(operands[1].tensor).read(operands[2].tensor);
}

// So are their gradients. GEMMs make those head by head, and the keys' as their transpose.
void BlockWriter::liger_rotary_back(const NodePlan& at) {
  const models::ValueList &in = at.node->in, &out = at.node->out;
  const bool stored = path() == AttentionPath::eager || path() == AttentionPath::math;
  std::array<TensorId, 2> laid_out{kNoTensor, kNoTensor};
  for (std::size_t i = 0; i < in.size(); ++i) {
    const TensorId d = gradient(out[i]).tensor;
    const bool several = plan_->value(out[i]).width != d_.head_dim;
    const bool copies = stored && (several || (i == 1 && !grouped()));
    laid_out[i] =
        copies ? temporary(operand(at, i).grad_laid_out, values_of(in[i]), dtype_of(in[i])) : d;
  }
  auto turn = op(at.attention_names->module);
  for (std::size_t i = 0; i < in.size(); ++i) {
    const bool copies = laid_out[i] != gradient(out[i]).tensor;
    turn.read(copies ? gradient(out[i]).tensor : kNoTensor);
    turn.touch(laid_out[i], 0, kNoTensor, copies ? Access::write : Access::update);
    gradient(in[i]) = {grad_of(in[i]) ? laid_out[i] : kNoTensor};
  }
  const auto operands = rotary_operands(kNoTensor);
  turn.read(operands[1].tensor).read(operands[2].tensor);
}

// ops/swiglu.py, ops/geglu.py: both operands are kept, and their gradients take their place.
void BlockWriter::liger_gate_back(const NodePlan& at, const LayerSaved& s) {
  unpack();
  const TensorId gate = s.of(at.gate), up = s.of(at.up);
  op(at.names->name).read(gradient(at.node->out[0]).tensor).update(gate).update(up);
  if (grad_of(at.gate)) gradient(at.gate) = {gate};
  if (grad_of(at.up)) gradient(at.up) = {up};
}

}  // namespace plimsoll::planner::pytorch
