// What ranks that share each sequence send each other: activations, each way once forward and once
// backward, and what a recomputation sends again. Nothing runs beside them: each waits for the GEMM
// in front of it, and the next GEMM for it (torchtitan's asynchronous tensor parallelism needs
// compiled layers).
#include "models/decisions/mesh.h"
#include "planner/stacks/pytorch/step_writer.h"

namespace plimsoll::planner::pytorch {

using models::OpKind;
using Kind = Message::Kind;
using Part = Message::Part;
using When = Message::When;

namespace {

class SequenceMessages {
 public:
  SequenceMessages(const models::Strategy& strategy, Messages& out)
      : group_(models::decisions::mesh_of(strategy)[models::decisions::Axis::tensor]), out_(out) {}

  // Where the messages that follow stand.
  void at(Part part, std::size_t layer, std::int64_t copies) {
    part_ = part;
    layer_ = layer;
    copies_ = copies;
  }
  // An array of so many bytes, of a token or as it is.
  void send(Kind kind, When when, Bytes array, bool of_token) {
    add(out_, {.kind = kind,
               .array = array,
               .of_token = of_token,
               .count = copies_,
               .group = group_,
               .part = part_,
               .layer = layer_,
               .when = when});
  }
  void gather(When when, Bytes token) { send(Kind::all_gather, when, token, true); }
  void scatter(When when, Bytes token) { send(Kind::reduce_scatter, when, token, true); }
  void sum_norm(std::int64_t width, DType dtype) {
    send(Kind::all_reduce, When::reduction, storage(Count(width), dtype), false);
  }

 private:
  models::decisions::AxisGroup group_;
  Messages& out_;
  Part part_ = Part::front;
  std::size_t layer_ = 0;
  std::int64_t copies_ = 1;
};

Bytes of_token(const BlockPlan& plan, const NodePlan& at) {
  const ValuePlan& value = plan.value(at.node->out[0]);
  return storage(Count(value.width), value.dtype);
}

// Forward, or the same again in front of the backward: the first so many nodes, and not what is
// stored.
void run_forward(const BlockPlan& plan, When when, std::size_t nodes, SequenceMessages& messages) {
  for (std::size_t i = 0; i < nodes; ++i) {
    const NodePlan& at = plan.nodes[i];
    if (when == When::backward && at.stored) continue;
    if (at.node->kind == OpKind::gather_sequence) messages.gather(when, of_token(plan, at));
    if (at.node->kind == OpKind::scatter_sequence) messages.scatter(when, of_token(plan, at));
  }
}

void run_backward(const BlockPlan& plan, SequenceMessages& messages) {
  for (const NodePlan& at : plan.nodes) {
    if (at.node->kind == OpKind::gather_sequence)
      messages.scatter(When::backward, of_token(plan, at));
    if (at.node->kind == OpKind::scatter_sequence)
      messages.gather(When::backward, of_token(plan, at));
  }
}

}  // namespace

void StepWriter::write_sequence_messages(Messages& out) const {
  SequenceMessages messages(s_.strategy, out);
  const Bytes token = storage(Count(s_.d.hidden), s_.regime.residual);
  messages.at(Part::front, 0, 1);
  messages.scatter(When::forward, token);
  messages.gather(When::backward, token);
  std::size_t layer = 0;
  for (const LayerRun& run : s_.parts.runs)
    for (const LayerPart& part : run.pattern) {
      BlockPlan plan(part, s_.regime, s_.regime.residual, run.input_grad);
      if (s_.strategy.recompute.kind == models::RecomputeKind::ops)
        plan.store_by_op(s_.strategy.recompute);
      messages.at(Part::layer, layer++, run.repeats());
      run_forward(plan, When::forward, plan.nodes.size(), messages);
      if (s_.recomputes())
        run_forward(plan, When::backward,
                    checkpoints_.repeats_to_the_end() ? plan.nodes.size() : plan.last_save + 1,
                    messages);
      run_backward(plan, messages);
      for (const NormPart& norm : part.norms) messages.sum_norm(norm.width, s_.regime.norm);
    }
  // The head's input; of cross entropy each token's maximum, sum and log-probability in fp32.
  messages.at(Part::tail, 0, 1);
  messages.gather(When::forward, token);
  for (int i = 0; i < 3; ++i)
    messages.send(Kind::all_reduce, When::forward, storage(Count(1), DType::fp32), true);
  messages.scatter(When::backward, token);
  messages.sum_norm(s_.d.hidden, s_.regime.norm);
}

}  // namespace plimsoll::planner::pytorch
