// Small models, and their step as our own runtime's stack plans it, in requested bytes.
#pragma once

#include <string>

#include "models/model_reader.h"
#include "planner/program/peak.h"
#include "planner/program/timeline.h"
#include "planner/stacks/plimsoll/step.h"

namespace plimsoll::planner::plimsoll_stack {

struct Planned {
  models::StepProgram program;
  reports::States states;
  models::decisions::Sharding sharding;
  Timeline timeline;
  Peak peak;
};

inline models::Strategy fp32_strategy() {
  models::Strategy s;
  s.stack = models::Stack::plimsoll;
  s.precision = models::Precision::fp32;
  return s;
}
inline models::Strategy bf16_strategy() {
  models::Strategy s = fp32_strategy();
  s.precision = models::Precision::bf16_mixed;
  return s;
}

inline Planned planned(const models::ModelSpec& model, const models::Strategy& strategy,
                       const models::Batch& batch, Rules rules = {.granularity = 1}) {
  Planned out;
  const ModelParts parts = model_parts(model, strategy);
  StepWriter writer(out.program, parts, strategy, batch, rules);
  writer.write();
  out.states = writer.states();
  out.sharding = writer.sharding();
  out.timeline = unroll(out.program);
  PeakFinder finder;
  out.peak = finder.find(out.program);
  return out;
}

// Hidden 64, 4 heads of 16, 2 key heads, inner width 128, vocabulary 256, as `model_type`.
inline models::ModelSpec small_llama(std::int64_t layers, const char* model_type = "llama",
                                     bool tied = false) {
  const std::string config =
      std::string(R"({"hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2,
                      "head_dim": 16, "intermediate_size": 128, "vocab_size": 256,
                      "max_position_embeddings": 4096, "model_type": ")") +
      model_type + R"(", "num_hidden_layers": )" + std::to_string(layers) +
      R"(, "tie_word_embeddings": )" + (tied ? "true}" : "false}");
  return models::read_model(config, model_type, model_type, {});
}

// Hidden 64, 4 heads of 16, inner width 256, vocabulary 256, 512 positions.
inline models::ModelSpec small_gpt2(std::int64_t layers, double dropout = 0) {
  const std::string p = std::to_string(dropout);
  return models::read_model(
      R"({"model_type": "gpt2", "n_embd": 64, "n_head": 4, "vocab_size": 256, "n_positions": 512,
          "n_layer": )" +
          std::to_string(layers) + R"(, "resid_pdrop": )" + p + R"(, "embd_pdrop": )" + p +
          R"(, "attn_pdrop": )" + p + "}",
      "gpt2", "gpt2", {});
}

// The first step of the timeline whose op is called so.
inline std::size_t step_named(const Planned& p, const std::string& name,
                              models::Phase phase = models::Phase::forward) {
  for (std::size_t i = 0; i < p.timeline.steps.size(); ++i) {
    const Position& at = p.timeline.steps[i].at;
    if (p.program.ops[at.op].phase == phase && name_of_op(p.program, at) == name) return i;
  }
  return p.timeline.steps.size();
}

inline Bytes in_category(const Planned& p, std::size_t step, models::Category category) {
  return categories_at(p.program, p.timeline, step)[static_cast<std::size_t>(category)];
}

}  // namespace plimsoll::planner::plimsoll_stack
