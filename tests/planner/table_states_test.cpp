// States from parameter counts alone, which stand for models whose step is not planned, against
// the planned steps of one that is.
#include <doctest/doctest.h>

#include <string>

#include "models/gpu_catalog.h"
#include "models/model_reader.h"
#include "models/run_names.h"
#include "planner/plan.h"
#include "planner/states_only.h"

using namespace plimsoll;
using models::Lora;
using models::Optimizer;
using models::Precision;
using models::Stack;
using models::Strategy;

namespace {

// Every tensor, and a quarter of it in 16 bits, is a multiple of 512 bytes: nothing is padded.
const models::ModelSpec& llama() {
  static const models::ModelSpec model = models::read_model(
      R"({"model_type": "llama", "hidden_size": 1024, "vocab_size": 128, "intermediate_size": 1024,
    "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 4,
    "max_position_embeddings": 512})",
      "llama", "llama", {});
  return model;
}

std::string text(const reports::States& states) {
  return std::to_string(states.parameters.value()) + " " +
         std::to_string(states.gradients.value()) + " " + std::to_string(states.optimizer.value());
}

std::string planned(const Strategy& s) {
  planner::Question question;
  question.model = &llama();
  question.strategy = s;
  question.cluster.gpu = models::find_gpu("h100-sxm-80gb");
  question.batch = {.seq_len = 16};
  question.detail = planner::Detail::none;
  return text(planner::plan(question).states);
}

std::string by_table(const Strategy& s) {
  return text(planner::table_states(planner::count_parameters(llama(), s), s));
}

}  // namespace

TEST_CASE("states by the table are those of planned steps") {
  int compared = 0;
  for (const Stack stack : {Stack::pytorch, Stack::plimsoll})
    for (const int zero : {0, 1, 2, 3})
      for (const Precision precision : {Precision::fp32, Precision::bf16_mixed, Precision::bf16})
        for (const Optimizer optimizer : {Optimizer::adamw, Optimizer::momentum, Optimizer::sgd})
          for (const char* adapters : {"none", "fp32", "bf16"}) {
            // ZeroRedundancyOptimizer shares out whole parameters; FSDP has no stage between.
            if (stack == Stack::pytorch && (zero == 1 || zero == 2)) continue;
            Strategy s;
            s.stack = stack;
            s.gpus = 4;
            s.data.zero = zero;
            s.precision = precision;
            s.optimizer = optimizer;
            if (adapters != std::string("none"))
              s.lora = Lora{.rank = 4,
                            .dtype = adapters[0] == 'f' ? DType::fp32 : DType::bf16,
                            .targets = {"all-linear"}};
            CAPTURE(models::name_of(stack));
            CAPTURE(zero);
            CAPTURE(models::name_of(precision));
            CAPTURE(static_cast<int>(optimizer));
            const std::string which = adapters;
            CAPTURE(which);
            std::string step;
            try {
              step = planned(s);
            } catch (const Error&) {
              continue;
            }
            CHECK(by_table(s) == step);
            ++compared;
          }
  CHECK(compared > 50);
}
