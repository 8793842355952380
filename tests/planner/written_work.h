// A step's program with what its ops ask of the GPU, of a config.
#pragma once

#include <string>

#include "models/gpu_catalog.h"
#include "models/model_reader.h"
#include "planner/program/work.h"
#include "planner/stack_step.h"
#include "planner/stacks/stack_info.h"
#include "planner/time/compute_time.h"
#include "tests/planner/every_code.h"

namespace plimsoll::tests {

struct Written {
  models::ModelSpec model;
  planner::Question question;
  models::StepProgram program;
  planner::Works works;

  Written(const char* config, const models::Strategy& strategy, models::Batch batch)
      : model(models::read_model(config, "made-up", "test")) {
    question.strategy = planner::computing_part(strategy);
    question.batch = batch;
    question.cluster.gpu = models::find_gpu(card_of(question.strategy));
    const planner::ModelParts parts = planner::model_parts(model, question.strategy);
    planner::stack_info(question.strategy.stack).write_compute(question, parts, program, works);
  }
  planner::StepWork all() const { return planner::work_of_step(program, works); }
  // Of the ops with this name in the first layer, bytes for each of `values`.
  double bytes_each(const std::string& name, models::Phase phase, double values) const {
    double moved = 0;
    for (std::size_t i = 0; i < program.ops.size(); ++i)
      if (program.ops[i].name == name && program.ops[i].phase == phase)
        moved += works.of(i).moved + works.of(i).casts;
    return moved / values;
  }
};

}  // namespace plimsoll::tests
