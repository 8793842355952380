// Questions about --attention, and what stack pytorch answers: adapters on a catalog's model.
#pragma once

#include <optional>
#include <string>

#include "models/gpu_catalog.h"
#include "models/model_catalog.h"
#include "planner/plan.h"

namespace plimsoll::tests {

struct AttentionQuestion {
  const char* model = "llama-2-7b";
  const char* gpu = "h100-sxm-80gb";
  std::optional<models::Attention> attention = {};  // none: the test's own
  models::Precision precision = models::Precision::bf16;
  std::int64_t tokens = 1024, sequences = 1;
  models::RecomputeKind recompute = models::RecomputeKind::none;
  models::Kernels kernels = models::Kernels::eager;
  models::Compile compile = models::Compile::no;
  models::Release transformers = models::kTransformers;
  models::Rows rows = models::Rows::full;  // padded: half of the tokens are real
};

inline reports::Plan answer(const AttentionQuestion& asked, models::Attention own) {
  const models::ModelSpec model = models::catalog_model(asked.model);
  planner::Question question;
  question.model = &model;
  models::Strategy& s = question.strategy;
  s.attention = asked.attention.value_or(own);
  s.precision = asked.precision;
  s.recompute.kind = asked.recompute;
  s.kernels = asked.kernels;
  s.compile = asked.compile;
  s.transformers = asked.transformers;
  s.rows = asked.rows;
  s.lora = models::Lora{.rank = 8};
  question.batch = {.seq_len = asked.tokens, .micro_batch = asked.sequences};
  if (asked.rows == models::Rows::padded) question.batch.real_tokens = asked.tokens / 2;
  question.cluster.gpu = models::find_gpu(asked.gpu);
  question.remedies = false;
  return planner::plan(question);
}

// "": there is none.
inline std::string refusal(const AttentionQuestion& asked, models::Attention own) {
  try {
    (void)answer(asked, own);
  } catch (const Error& error) {
    return error.message();
  }
  return "";
}

inline bool starts(const std::string& text, const char* with) {
  return text.starts_with(with);
}

}  // namespace plimsoll::tests
