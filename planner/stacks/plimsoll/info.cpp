// What the rest of the planner is told of stack plimsoll.
#include "models/optimizers.h"
#include "planner/stacks/plimsoll/stack.h"
#include "planner/stacks/plimsoll/step.h"

namespace plimsoll::planner::plimsoll_stack {

namespace {

// Mixed: 16-bit weights and gradients, fp32 master and moments; pure: everything in one dtype.
// Adapters have a dtype of their own, and in fp32 no masters.
TableStates table_states(const ParameterCounts& counts, const models::Strategy& s) {
  const bool mixed = is_mixed(s.precision);
  const DType adapter = s.lora ? s.lora->dtype : DType::fp32;
  const DType weight = s.precision == models::Precision::fp32 ? DType::fp32 : DType::bf16;
  const Bytes adapters = storage(counts.adapters, adapter);
  const models::OptimizerRule& rule = models::rule_of(s.optimizer);
  check(rule.torch.projects_to == 0, ErrorKind::unsupported, [&] {
    return "--optimizer " + std::string(rule.name) +
           " is planned where the model's step is: its states are not as many values as there are "
           "parameters";
  });
  const std::int64_t states = std::ssize(rule.states);
  const auto stepped = [&](Count values, DType dtype) {
    const bool widens = mixed && dtype != DType::fp32;
    return storage(values, widens ? DType::fp32 : dtype) * (states + (widens ? 1 : 0));
  };
  return {{.parameters = storage(counts.total - counts.adapters, weight) + adapters,
           .gradients = storage(counts.trainable - counts.adapters, weight) + adapters,
           .optimizer = stepped(counts.trainable - counts.adapters, weight) +
                        stepped(counts.adapters, adapter)},
          3,
          2,
          1};
}

models::Strategy compute_as(const models::Strategy& s) {
  models::Strategy out = s;
  out.data = {};
  out.gpus = out.gpus_per_node = 1;
  return out;
}

void write_compute(const Question& question, const ModelParts& parts, models::StepProgram& program,
                   Works& works) {
  const Rules rules{.deterministic = question.strategy.deterministic, .works = &works};
  StepWriter(program, parts, question.strategy, question.batch, rules).write();
}

void write_optimizer(const ModelParts& parts, const models::Strategy& strategy,
                     models::StepProgram& program, Works& works) {
  StepWriter(program, parts, strategy, {},
             {.deterministic = strategy.deterministic, .works = &works})
      .write_optimizer();
}

}  // namespace

constinit const StackInfo kStack{
    .kind = models::Stack::plimsoll,
    .title = "plimsoll",
    .rungs = {"DDP", "ZeRO-1", "ZeRO-2", "ZeRO-3"},
    .write_step = write_step,
    .compute_as = compute_as,
    .write_compute = write_compute,
    .write_optimizer = write_optimizer,
    .write_messages = write_messages,
    .table_states = table_states,
    .processes = models::Stack::plimsoll,
    .own_kernels = true,
    .reserves_exactly = true,
    .untried_on_gpus = true,
    .hybrid_from_stage = 1,
};

}  // namespace plimsoll::planner::plimsoll_stack
