// A DTensor's redistribution along the axis of a sequence (tensor/placement_types.py, Shard) goes
// through funcol.all_gather_tensor and reduce_scatter_tensor (_functional_collectives.py), which
// know the first axis alone: what is gathered is cut by rank and concatenated anew, unless there is
// one sequence, where that is a view; what is scattered is so before it is sent, of one sequence
// too.
#include "planner/stacks/pytorch/sequence_parallel.h"

#include "planner/stacks/pytorch/block_writer.h"

namespace plimsoll::planner::pytorch {

using models::OpKind;
using models::ValueId;

TensorId SequenceWriter::gather(const char* by_rank, const char* name, Ref part, SymInt values,
                                DType dtype, Category category) {
  const bool view = w_.tokens_.sequences == 1;
  const TensorId ranks =
      w_.make(view ? name : by_rank, values, dtype, view ? category : Category::temporaries);
  auto gather = w_.op(view ? name : by_rank);
  w_.read(gather, part).write(ranks);
  w_.b_.work().moves(0, 0);  // a message's time stands with the messages
  if (view) return ranks;
  const TensorId whole = w_.make(name, values, dtype, category);
  auto join = w_.op(name).read(ranks).write(whole);
  w_.read(join, part);
  return whole;
}

TensorId SequenceWriter::lay_out(const char* by_rank, TensorId whole, SymInt values, DType dtype) {
  const TensorId ranks = w_.make(by_rank, values, dtype, Category::temporaries);
  w_.op(by_rank).read(whole).write(ranks);
  return ranks;
}

// What is summed lives until the sum is waited for.
TensorId SequenceWriter::scatter(const char* by_rank, const char* name, TensorId whole,
                                 SymInt values, DType dtype, Category category) {
  const TensorId ranks = lay_out(by_rank, whole, values, dtype);
  const TensorId part = w_.make(name, values / w_.d_.sequence_parts, dtype, category);
  w_.op(name).read(ranks).read(whole).write(part);
  w_.b_.work().moves(0, 0);
  return part;
}

// What a recomputation by op has of the forward is laid out nevertheless.
void BlockWriter::run_sequence(const NodePlan& at, LayerSaved& s) {
  const SequenceNames& names = *at.sequence_names;
  const ValueId in = at.node->in[0], out = at.node->out[0];
  SequenceWriter writer(*this);
  if (at.node->kind == OpKind::gather_sequence) {
    s.of(out) = writer.gather(names.by_rank, names.out, value(s, in), values_of(out), dtype_of(out),
                              Category::activations);
  } else if (at.stored && stored_ != nullptr && phase_ == Phase::recompute) {
    writer.lay_out(names.by_rank, s.of(in), values_of(in), dtype_of(in));
    s.of(out) = stored_->of(out);
  } else {
    s.of(out) = writer.scatter(names.by_rank, names.out, s.of(in), values_of(in), dtype_of(in),
                               Category::activations);
  }
}

void BlockWriter::sequence_back(const NodePlan& at) {
  const SequenceNames& names = *at.sequence_names;
  const ValueId in = at.node->in[0], out = at.node->out[0];
  SequenceWriter writer(*this);
  gradient(in) = {at.node->kind == OpKind::gather_sequence
                      ? writer.scatter(names.grad_by_rank, names.grad, gradient(out).tensor,
                                       values_of(out), dtype_of(out), Category::temporaries)
                      : writer.gather(names.grad_by_rank, names.grad, gradient_of(out),
                                      values_of(in), dtype_of(in), Category::temporaries)};
}

}  // namespace plimsoll::planner::pytorch
