// What eager Transformers keeps of one layer from forward to backward, in closed form.
#include <doctest/doctest.h>

#include <algorithm>
#include <string_view>

#include "models/model_catalog.h"
#include "planner/program/timeline.h"
#include "planner/stacks/pytorch/stack.h"

using namespace plimsoll;

namespace {

constexpr std::int64_t kLength = 4096;

// Bytes of layer 5's tensors that are alive when the last op of the forward is done; pure bf16.
Bytes saved_by_layer(const char* name, models::RecomputeKind recompute) {
  const models::ModelSpec model = models::catalog_model(name);
  models::Strategy strategy;
  strategy.precision = models::Precision::bf16;
  strategy.recompute.kind = recompute;
  const planner::ModelParts parts = planner::model_parts(model, strategy);
  planner::pytorch::Rules rules;
  rules.granularity = 1;
  models::StepProgram program;
  planner::pytorch::step_writer(program, parts, strategy, {.seq_len = kLength}, rules)->write();
  const planner::Timeline timeline = planner::unroll(program);
  std::int64_t last = 0;
  for (std::size_t i = 0; i < timeline.steps.size(); ++i)
    if (program.ops[timeline.steps[i].at.op].phase == models::Phase::forward)
      last = static_cast<std::int64_t>(i);
  Bytes saved;
  for (const planner::Lifetime& life : timeline.lifetimes) {
    const models::TensorDecl& tensor = program.tensors[static_cast<std::size_t>(life.tensor)];
    if (tensor.residency == models::Residency::step && tensor.group != models::kNoGroup &&
        life.instance == 5 && life.birth >= 0 && life.birth <= last && life.death > last)
      saved += tensor.bytes;
  }
  return saved;
}

}  // namespace

TEST_CASE("a Llama layer in bf16 saves 20 h + 4 kv + 8 f + 4 a + 8 bytes for each token") {
  // Two norms: x in fp32 4 h, 1/rms 4, the cast normalized 2 h, the result 2 h, so 16 h + 8; q, k,
  // v after rotation 2 h + 4 kv; attention 2 h and log-sum-exp 4 a; gate, silu, up, product 8 f.
  // Once a layer, not a token: the generator's seed and offset, 24 bytes.
  const std::int64_t llama_2_7b = 20 * 4096 + 4 * 4096 + 8 * 11008 + 4 * 32 + 8;
  const std::int64_t llama_3_8b = 20 * 4096 + 4 * 1024 + 8 * 14336 + 4 * 32 + 8;
  const std::int64_t llama_3_70b = 20 * 8192 + 4 * 1024 + 8 * 28672 + 4 * 64 + 8;
  CHECK(llama_2_7b == 186'504);
  CHECK(llama_3_8b == 200'840);
  CHECK(llama_3_70b == 397'576);
  using models::RecomputeKind;
  CHECK(saved_by_layer("llama-2-7b", RecomputeKind::none) == Bytes(llama_2_7b * kLength + 24));
  CHECK(saved_by_layer("llama-3.1-8b", RecomputeKind::none) == Bytes(llama_3_8b * kLength + 24));
  CHECK(saved_by_layer("llama-3.1-70b", RecomputeKind::none) == Bytes(llama_3_70b * kLength + 24));
}

TEST_CASE("a recomputed layer saves its output, the next one's input, and nothing else") {
  // The stream after the layer: 2 h.
  CHECK(saved_by_layer("llama-3.1-8b", models::RecomputeKind::full) == Bytes(2 * 4096 * kLength));
}

// ATen/native/SoftMax.cpp, half_to_float: the CUDA kernel reads fp16 itself, of bf16 a copy is
// made.
TEST_CASE("eager attention copies bf16 scores to fp32 for the softmax, fp16 ones it reads") {
  const auto copies = [](models::Precision precision) {
    const models::ModelSpec model = models::catalog_model("llama-3.2-1b");
    models::Strategy strategy;
    strategy.precision = precision;
    strategy.attention = models::Attention::eager;
    const planner::ModelParts parts = planner::model_parts(model, strategy);
    models::StepProgram program;
    planner::pytorch::step_writer(program, parts, strategy, {.seq_len = kLength}, {})->write();
    return std::ranges::count_if(program.tensors, [](const models::TensorDecl& tensor) {
      return std::string_view(tensor.name).ends_with(".scores.masked.fp32");
    });
  };
  CHECK(copies(models::Precision::bf16) == 1);
  CHECK(copies(models::Precision::fp16) == 0);
}
