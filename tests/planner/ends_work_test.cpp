// What the ops of a step's ends ask of the GPU, counted by hand from the Python that runs there.
#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <string>
#include <string_view>

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

// Of 2 x 1023 rows: each logit once, and in the backward again, before the two gradients.
TEST_CASE("TRL's tiles are multiplied again in the backward") {
  for (const bool adapters : {false, true}) {
    models::Strategy s = bf16();
    s.loss = models::Loss::tiled;
    if (adapters) s.lora = models::Lora{.rank = 4, .targets = {"q_proj"}};
    const planner::StepWork all = Written(kLlama, s, {.seq_len = 1024, .micro_batch = 2}).all();
    const auto products = [](const WorkSum& of) {
      std::vector<std::array<double, 3>> out;
      for (const planner::Gemm& gemm : of.gemms) out.push_back({gemm.m, gemm.n, gemm.k});
      return out;
    };
    using Products = std::vector<std::array<double, 3>>;
    CHECK(products(all.ends.forward) == Products{{2046, 32000, 4096}});
    Products backward{{2046, 32000, 4096}, {2046, 4096, 32000}};
    if (!adapters) backward.push_back({32000, 4096, 2046});
    CHECK(products(all.ends.backward) == backward);
  }
}

// Eight parts of 2 * 1024 / 8 rows. In bytes: a part's logits p in fp32 and `low` in 16 bits, the
// head's weights w. Beside its result, a part's low gradient, the backward takes two gradients of
// fp32 for the first part; one and the head's gradient for the second's softmax; or two of the
// head's, less what the two log-probabilities before let go.
TEST_CASE("the backward of a chunked loss holds a part's gradients and the head's") {
  models::Strategy s = bf16();
  s.loss = models::Loss::chunked;
  const auto scratch = [&](std::int64_t rows) {
    const Written step(kLlama, s, {.seq_len = rows, .micro_batch = 1});
    for (const models::Op& op : step.program.ops)
      if (std::string_view(op.name) == "loss.chunks" && op.phase == models::Phase::backward)
        return op.scratch.value();
    return std::int64_t{-1};
  };
  const std::int64_t w = 32000 * 4096 * 2;
  const auto p = [](std::int64_t rows) { return rows / 8 * 32000 * 4; };
  CHECK(scratch(8192) == p(8192) + w - p(8192) / 2);
  CHECK(scratch(32768) == 2 * p(32768) - p(32768) / 2);
  CHECK(scratch(512) == 2 * w - 2 * p(512));
  s.freeze = {"lm_head.weight"};
  CHECK(scratch(512) == 2 * p(512) - p(512) / 2);
}

// autocast_mode.cpp, exit: the cache of casts is cleared where the outermost context ends.
TEST_CASE("autocast lets go of its casts where there is one") {
  const auto exits = [](models::Precision precision) {
    models::Strategy s;
    s.precision = precision;
    const Written step(kLlama, s, {.seq_len = 128, .micro_batch = 1});
    return std::ranges::count_if(step.program.ops, [](const models::Op& op) {
      return std::string_view(op.name) == "autocast.exit";
    });
  };
  CHECK(exits(models::Precision::bf16_mixed) == 1);
  CHECK(exits(models::Precision::fp16_mixed) == 1);
  CHECK(exits(models::Precision::bf16) == 0);
  CHECK(exits(models::Precision::fp32) == 0);
}
