// What the ops of a step's ends ask of the GPU, counted by hand from the Python that runs there.
#include <doctest/doctest.h>

#include "tests/planner/written_work.h"

using namespace plimsoll;
using planner::WorkSum;
using tests::Written;

namespace {

WorkSum rest(const Written& step, const std::string& name, models::Phase phase) {
  for (std::size_t i = 0; i < step.program.ops.size(); ++i)
    if (step.program.ops[i].name == name && step.program.ops[i].phase == phase)
      return planner::rest_of_op(step.program, step.works, i);
  FAIL("no op " << name);
  return {};
}

models::Strategy bf16() {
  models::Strategy s;
  s.precision = models::Precision::bf16;
  return s;
}

constexpr const char* kLlama = R"({"model_type": "llama", "hidden_size": 4096, "vocab_size": 32000,
  "intermediate_size": 14336, "num_hidden_layers": 2, "num_attention_heads": 32,
  "num_key_value_heads": 8, "max_position_embeddings": 8192})";

}  // namespace

// hidden_states[:, 0]: backward reads the gradient of 4 first tokens, and writes it into zeros of
// all 4 x 128, which are filled before.
TEST_CASE("the first token's gradient goes into zeros of all tokens") {
  const Written step(R"({"model_type": "bert", "architectures": ["BertForSequenceClassification"],
      "hidden_size": 256, "num_attention_heads": 4, "num_hidden_layers": 2,
      "intermediate_size": 512, "vocab_size": 1000, "max_position_embeddings": 512,
      "type_vocab_size": 2, "num_labels": 2})",
                     bf16(), {.seq_len = 128, .micro_batch = 4});
  CHECK(rest(step, "pooler", models::Phase::backward).moved ==
        2 * (4 * 256 * 2) + 4 * 128 * 256 * 2);
}

// LigerFusedLinearCrossEntropyFunction.backward: torch.equal(grad_output, 1) is one kernel that
// reads a value, and the gradients stay as the forward left them.
TEST_CASE("a fused loss asks in its backward for one kernel, and moves nothing") {
  models::Strategy s = bf16();
  s.kernels = models::Kernels::liger, s.loss = models::Loss::fused;
  const Written step(kLlama, s, {.seq_len = 1024, .micro_batch = 2});
  const WorkSum rest_of = rest(step, "loss.fused", models::Phase::backward);
  CHECK(rest_of.moved == 0);
  CHECK(rest_of.kernels == 1);
}
