// A question of stack deepspeed about a model of 16 small parameters, which a test counts by hand.
#pragma once

#include <string>

#include "models/gpu_catalog.h"
#include "models/model_reader.h"
#include "planner/plan.h"
#include "planner/program/work.h"
#include "planner/stacks/deepspeed/layout.h"
#include "planner/stacks/deepspeed/stack.h"
#include "planner/stacks/stack_info.h"
#include "planner/time/compute_time.h"

namespace plimsoll::tests {

// In the order of their registration: wte 88, wpe 32; a layer of 872: ln_1 8, 8; c_attn 192, 24;
// c_proj 64, 8; ln_2 8, 8; c_fc 256, 32; c_proj 256, 8; ln_f 8, 8. The head is wte.
struct Asked {
  models::ModelSpec model;
  planner::Question question;

  explicit Asked(int zero, std::int64_t gpus = 3, int layers = 1)
      : model(
            models::read_model(R"({"model_type": "gpt2", "n_embd": 8, "n_head": 2, "n_positions": 4,
          "vocab_size": 11, "n_layer": )" +
                                   std::to_string(layers) + "}",
                               "tiny", "tiny", {})) {
    question.model = &model;
    question.cluster.gpu = models::find_gpu("h100");
    question.remedies = false;
    question.detail = planner::Detail::none;
    strategy().stack = models::Stack::deepspeed;
    strategy().gpus = gpus;
    strategy().data.zero = zero;
    strategy().precision = models::Precision::fp32;
    question.batch = {.seq_len = 4, .micro_batch = 1, .grad_accum = 1};
  }
  models::Strategy& strategy() { return question.strategy; }
  models::DeepSpeedOptions& options() { return strategy().data.deepspeed; }
  planner::ModelParts parts() const { return planner::model_parts(model, question.strategy); }
  planner::deepspeed::Engine engine() const {
    return planner::deepspeed::engine_of(question.strategy);
  }
  planner::deepspeed::FlatLayout layout() const { return {parts(), engine()}; }
  planner::Messages messages() const {
    planner::Messages out;
    planner::deepspeed::write_messages(parts(), question.strategy, out);
    return out;
  }
  // Bytes that the step of so many parameters moves, each.
  double step_moves(double elements) const {
    models::StepProgram program;
    planner::Works works;
    planner::stack_info(models::Stack::deepspeed)
        .write_optimizer(parts(), question.strategy, program, works);
    return planner::optimizer_work(program, works).moved / elements;
  }
};

}  // namespace plimsoll::tests
