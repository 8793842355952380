#include "planner/time/hardware_flops.h"

#include "models/decisions/mesh.h"
#include "planner/stack_step.h"
#include "planner/stacks/stack_info.h"
#include "planner/time/compute_time.h"

namespace plimsoll::planner {

// Every micro-batch of every rank multiplies the same.
double hardware_flops(const Question& question, const ModelParts& parts) {
  Question one = question;
  one.strategy = compute_of_one_gpu(question.strategy);
  one.strategy.offload = {};  // who keeps the states multiplies nothing with them
  one.batch.grad_accum = 1;
  models::StepProgram program;
  Works works;
  stack_info(one.strategy.stack).write_compute(one, parts, program, works);
  return computed_flops(program, works) * static_cast<double>(question.batch.grad_accum) *
         static_cast<double>(models::decisions::mesh_of(question.strategy).ranks());
}

}  // namespace plimsoll::planner
