// What the ops of our own runtime's step ask of the GPU beside GEMMs, counted by hand.
#include <doctest/doctest.h>

#include <map>
#include <string>
#include <vector>

#include "tests/planner/plimsoll_step.h"

using namespace plimsoll;
using namespace plimsoll::planner::plimsoll_stack;

namespace {

std::map<std::string, double> moved_by(const models::ModelSpec& model, const models::Strategy& s) {
  const planner::ModelParts parts = planner::model_parts(model, s);
  models::StepProgram program;
  planner::Works works;
  StepWriter(program, parts, s, {.seq_len = 32}, {.granularity = 1, .works = &works}).write();
  std::map<std::string, double> moved;
  for (std::size_t op = 0; op < program.ops.size(); ++op)
    moved[std::string(program.ops[op].name)] += planner::rest_of_op(program, works, op).moved;
  return moved;
}

}  // namespace

// 32 tokens. What is cast is read in 16 bits for its largest magnitude, read again, and written in
// 8 bits for each GEMM that reads it: 5 bytes a value for one, 6 for two. Backward, which casts an
// input or a weight again, has its scale: 3.
TEST_CASE(
    "a matrix that is cast to 8 bits is read twice, and written for each GEMM that reads it") {
  models::Strategy s = bf16_strategy();
  s.precision = models::Precision::fp8_mixed;
  const auto moved = moved_by(small_llama(1), s);
  // Inputs are kept in 16 bits: cast in the forward for its GEMM, and in the backward for the
  // weight's gradient.
  CHECK(moved.at("self_attn.q_proj.input.float8") == (5 + 3) * 32 * 64);
  CHECK(moved.at("mlp.down_proj.input.float8") == (5 + 3) * 32 * 128);
  CHECK(moved.at("self_attn.q_proj.out.grad.float8") == 6 * 32 * 64);
  CHECK(moved.at("mlp.up_proj.out.grad.float8") == 6 * 32 * 128);
  // Weights, within the GEMM's own op.
  CHECK(moved.at("self_attn.k_proj") == 5 * 64 * 32);
  CHECK(moved.at("mlp.down_proj.input.grad") == 3 * 64 * 128);
}

// The sum of 32 rows in bf16, beside the weight's GEMM, where there is a bias that is trained.
TEST_CASE("a bias's gradient reads what its linear made once more") {
  models::Strategy s = bf16_strategy();
  const auto moved = moved_by(small_gpt2(1), s);
  CHECK(moved.at("attn.c_attn.weight.grad") == 32 * 192 * 2);
  CHECK(moved.at("mlp.c_fc.weight.grad") == 32 * 256 * 2);
  CHECK(moved_by(small_llama(1), s).at("mlp.up_proj.weight.grad") == 0);
  s.freeze = {"*.bias"};
  CHECK(moved_by(small_gpt2(1), s).at("attn.c_attn.weight.grad") == 0);
}

// 32 rows of 64 in bf16: the adapter's part is read and written masked, and where another linear's
// part is there already that is read as well. Without dropout the GEMM adds to it by itself.
TEST_CASE("what an adapter's dropout masks in the backward is moved, nothing without one") {
  models::Strategy s = bf16_strategy();
  s.lora = models::Lora{.rank = 8, .dropout = 0.1, .targets = {"q_proj", "k_proj", "v_proj"}};
  const auto named = [&](const char* linear) {
    const std::string name = std::string("self_attn.") + linear + ".lora_A.input.grad";
    return moved_by(small_llama(2), s).at(name);
  };
  constexpr double kRows = 32 * 64 * 2;
  const double all = named("q_proj") + named("k_proj") + named("v_proj");
  CHECK(all == (2 + 3 + 3) * kRows);
  s.lora->dropout = 0;
  CHECK(named("q_proj") + named("k_proj") + named("v_proj") == 0);
}

// d(down's weight) wants the product, which is made again from gate and up beside its gradient; the
// rows that down made, and their sum, nobody reads.
TEST_CASE("a mixture's recomputation ends with what its backward reads") {
  models::Strategy s = bf16_strategy();
  s.recompute.kind = models::RecomputeKind::full;
  const models::ModelSpec model = models::read_model(
      R"({"model_type": "mixtral", "hidden_size": 64, "vocab_size": 1000, "intermediate_size": 96,
          "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1,
          "num_local_experts": 4, "num_experts_per_tok": 2, "max_position_embeddings": 512})",
      "mixtral", "mixtral", {});
  const models::StepProgram program = planned(model, s, {.seq_len = 32}).program;
  std::vector<std::string> again;
  for (const models::Op& op : program.ops)
    if (op.phase == models::Phase::recompute) again.emplace_back(op.name);
  REQUIRE(again.size() > 2);
  CHECK(again[again.size() - 2] == "block_sparse_moe.experts.route");
  CHECK(again.back() == "block_sparse_moe.experts.gate_up_proj");
}
