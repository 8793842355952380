// Ranks that share each sequence between attention and MLP: torch's tensor parallelism with
// SequenceParallel norms (torch/distributed/tensor/parallel/style.py).
//
// A DTensor's redistribution along the axis of a sequence (tensor/placement_types.py, Shard) goes
// through funcol.all_gather_tensor and reduce_scatter_tensor (_functional_collectives.py), which
// know the first axis alone: what is gathered is cut by rank and concatenated anew, unless there is
// one sequence, where that is a view; what is scattered is so before it is sent, of one sequence
// too.
#include "planner/stacks/pytorch/block_writer.h"

namespace plimsoll::planner::pytorch {

using models::ValueId;

TensorId ModuleWriter::gather_sequence(const char* by_rank, const char* name, Ref part,
                                       SymInt values, DType dtype, Category category) {
  const bool view = tokens_.sequences == 1;
  const TensorId ranks =
      make(view ? name : by_rank, values, dtype, view ? category : Category::communication);
  auto gather = op(view ? name : by_rank);
  read(gather, part).write(ranks);
  b_.work().moves(0, 0);  // a message's time stands with the messages
  if (view) return ranks;
  const TensorId whole = make(name, values, dtype, category);
  auto join = op(name).read(ranks).write(whole);
  read(join, part);
  return whole;
}

// What is summed lives until the sum is waited for.
TensorId ModuleWriter::scatter_sequence(const char* by_rank, const char* name, TensorId whole,
                                        SymInt values, DType dtype, Category category) {
  const TensorId ranks = make(by_rank, values, dtype, Category::communication);
  op(by_rank).read(whole).write(ranks);
  const TensorId part = make(name, values / d_.sequence_parts, dtype, category);
  op(name).read(ranks).read(whole).write(part);
  b_.work().moves(0, 0);
  return part;
}

void BlockWriter::run_gather(const NodePlan& at, LayerSaved& s) {
  const SequenceNames& names = *at.sequence_names;
  const ValueId out = at.node->out[0];
  s.of(out) = gather_sequence(names.by_rank, names.out, value(s, at.node->in[0]), values_of(out),
                              dtype_of(out), Category::activations);
}

// `kept`: what the forward made, which a recomputation by op takes; it is laid out nevertheless.
void BlockWriter::run_scatter(const NodePlan& at, TensorId kept, LayerSaved& s) {
  const SequenceNames& names = *at.sequence_names;
  const ValueId in = at.node->in[0];
  TensorId& part = s.of(at.node->out[0]);
  if (kept == kNoTensor) {
    part = scatter_sequence(names.by_rank, names.out, s.of(in), values_of(in), dtype_of(in),
                            Category::activations);
    return;
  }
  const TensorId ranks = make(names.by_rank, values_of(in), dtype_of(in), Category::communication);
  op(names.by_rank).read(s.of(in)).write(ranks);
  part = kept;
}

void BlockWriter::gather_back(const NodePlan& at) {
  const SequenceNames& names = *at.sequence_names;
  const ValueId in = at.node->in[0], out = at.node->out[0];
  gradient(in) = {scatter_sequence(names.grad_by_rank, names.grad, gradient(out).tensor,
                                   values_of(out), dtype_of(out), Category::temporaries)};
}

void BlockWriter::scatter_back(const NodePlan& at) {
  const SequenceNames& names = *at.sequence_names;
  const ValueId in = at.node->in[0];
  gradient(in) = {gather_sequence(names.grad_by_rank, names.grad, gradient_of(at.node->out[0]),
                                  values_of(in), dtype_of(in), Category::temporaries)};
}

}  // namespace plimsoll::planner::pytorch
