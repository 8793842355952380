// Model states of our own runtime: closed forms, padding, what a rank keeps.
#include <doctest/doctest.h>

#include <algorithm>
#include <string_view>

#include "models/model_catalog.h"
#include "planner/plan.h"
#include "planner/stacks/plimsoll/stack.h"
#include "tests/planner/plimsoll_step.h"

using namespace plimsoll;
using namespace plimsoll::planner::plimsoll_stack;
using models::Precision;

namespace {

reports::States states(const models::ModelSpec& model, models::Strategy strategy) {
  const planner::ModelParts parts = planner::model_parts(model, strategy);
  models::StepProgram program;
  StepWriter writer(program, parts, strategy, {.seq_len = 8}, {.granularity = 1});
  writer.write();
  return writer.states();
}

// Numerators of bytes per parameter over eight ranks, ZeRO 0 to 3.
void check_eighths(const models::ModelSpec& model, models::Strategy strategy,
                   std::array<std::int64_t, 4> eighths) {
  const std::int64_t parameters = model.parameter_count().value();
  REQUIRE(parameters % 64 == 0);  // eight ranks of 16-byte pieces: no padding below
  strategy.gpus = 8;
  for (int zero = 0; zero <= 3; ++zero) {
    strategy.data.zero = zero;
    CAPTURE(zero);
    CHECK(states(model, strategy).total().value() ==
          parameters / 8 * eighths[static_cast<std::size_t>(zero)]);
  }
}

models::ModelSpec one_wide_layer(int inner) {
  return models::read_model(
      R"({"model_type": "llama", "hidden_size": 64, "num_attention_heads": 1, "head_dim": 64,
          "vocab_size": 67, "num_hidden_layers": 1, "intermediate_size": )" +
          std::to_string(inner) + "}",
      "wide", "wide", {});
}

}  // namespace

TEST_CASE("plimsoll keeps the ZeRO paper's 16, 4 + 12/N, 2 + 14/N and 16/N bytes a parameter") {
  const models::ModelSpec model = models::catalog_model("llama-3.1-8b");
  // N = 8, times 8: 16·8; 4·8 + 12; 2·8 + 14; 16.
  models::Strategy s = bf16_strategy();
  check_eighths(model, s, {128, 44, 30, 16});
  s.precision = Precision::fp16_mixed;
  check_eighths(model, s, {128, 44, 30, 16});
}

TEST_CASE("fp32 16, 8 + 8/N, 4 + 12/N, 16/N; pure bf16 8, 4 + 4/N, 2 + 6/N, 8/N") {
  const models::ModelSpec model = models::catalog_model("llama-3.1-8b");
  models::Strategy s = fp32_strategy();
  check_eighths(model, s, {128, 72, 44, 16});
  s.precision = Precision::bf16;
  check_eighths(model, s, {64, 36, 22, 8});
}

TEST_CASE(
    "gradients in fp32 add 2 bytes, no masters take 4 away, optimizers have 2, 1 or 0 states") {
  const models::ModelSpec model = small_llama(2);
  const std::int64_t parameters = model.parameter_count().value();
  models::Strategy s = bf16_strategy();
  s.grad_dtype = DType::fp32;
  CHECK(states(model, s).total() == Bytes(18 * parameters));
  s.grad_dtype.reset();
  s.master_weights = false;
  CHECK(states(model, s).total() == Bytes(12 * parameters));
  s.master_weights.reset();
  s.optimizer = models::Optimizer::momentum;
  CHECK(states(model, s).total() == Bytes(12 * parameters));  // 2 + 2 + 4 + 4
  s.optimizer = models::Optimizer::lion;
  CHECK(states(model, s).total() == Bytes(12 * parameters));
  s.optimizer = models::Optimizer::sgd;
  CHECK(states(model, s).total() == Bytes(8 * parameters));
}

// One token of many layers: what a unit's backward takes beside its gradients is small. In bf16
// masters and two moments are 12 bytes a parameter, and 2 of weights; a layer has
// 64·64·2 + 64·32·2 + 3·64·128 + 2·64 = 36,992 of them, embedding and tail 16,384 and 16,448.
TEST_CASE("stepped in the backward, gradients of one unit live at a time") {
  const models::ModelSpec model = small_llama(40);
  const std::int64_t parameters = model.parameter_count().value();
  REQUIRE(parameters == 40 * 36992 + 16384 + 16448);
  models::Strategy s = bf16_strategy();
  const auto above = [&](const Planned& plan) { return plan.peak.bytes.value() - 14 * parameters; };
  const models::Batch token{.seq_len = 1};
  const Planned usual = planned(model, s, token);
  s.optimizer_in_backward = true;
  const Planned early = planned(model, s, token);
  CHECK(usual.states.gradients == Bytes(2 * parameters));
  CHECK(early.states.gradients == Bytes(0));
  CHECK(early.states.optimizer == usual.states.optimizer);
  // The usual peak has all units' gradients. What else lives there for one token is small: no
  // tenth.
  const std::int64_t of_others = 2 * (parameters - 36992);
  CHECK(above(usual) - above(early) > of_others * 9 / 10);
  CHECK(above(usual) - above(early) <= of_others);
  const auto has = [](const Planned& plan, const std::string& name) {
    return std::ranges::any_of(plan.program.ops,
                               [&](const models::Op& op) { return op.name == name; });
  };
  CHECK(has(usual, models::decisions::kGradientNorm));
  CHECK_FALSE(has(early, models::decisions::kGradientNorm));
}

// Eight layers of 2,048 tokens, 64 wide, in bf16: 256 KiB each.
TEST_CASE("inputs of checkpointed layers are on the host, but for the one used and the next") {
  const models::ModelSpec model = small_llama(8);
  models::Strategy s = bf16_strategy();
  s.recompute.kind = models::RecomputeKind::full;
  const models::Batch batch{.seq_len = 2048};
  const Planned on_device = planned(model, s, batch);
  s.offload.activations = true;
  const Planned away = planned(model, s, batch);
  const std::int64_t input = 2048 * 64 * 2;
  // The peak is in a layer's backward: with all inputs on the device the first that runs, where
  // eight are there and one layer's gradients; else the last but one, whose own input and the last
  // one's are there and seven layers' gradients.
  CHECK(on_device.peak.bytes.value() - away.peak.bytes.value() == 6 * (input - 2 * 36992));
  models::StepProgram host;
  const planner::ModelParts parts = planner::model_parts(model, s);
  models::StepProgram program;
  StepWriter writer(program, parts, s, batch, {.granularity = 1});
  writer.write();
  writer.write_host(host);
  planner::PeakFinder finder;
  CHECK(finder.find(host).bytes.value() == 8 * input);
  CHECK(finder.find(host).resident == Bytes(0));
}

// Hidden 64, one head, inner width 64, vocabulary 67, one layer, N = 3, bf16. In elements:
//   embedding 67·64 = 4288: 17 blocks, 18 for three ranks, 4608
//   layer     4 · 4096 + 3 · 4096 + 2 · 64 = 28800: 113 blocks, 114 for three ranks, 29184
//   tail      64 + 4288 = 4352: 17 blocks, 18 for three ranks, 4608
// 38400 of three ranks, with 150 scales for each of two states.
TEST_CASE("AdamW in 8 bits keeps 2 bytes and 2 / 64 of an fp32 scale") {
  const models::ModelSpec model = one_wide_layer(64);
  models::Strategy s = bf16_strategy();
  s.optimizer = models::Optimizer::adam8bit;
  s.gpus = 3;
  for (int zero = 1; zero <= 3; ++zero) {
    s.data.zero = zero;
    CHECK(states(model, s).optimizer == Bytes((38400 * (4 + 2) + 150 * 2 * 4) / 3));
  }
  s.data.zero = 0;
  s.gpus = 1;  // 17 + 113 + 17 blocks
  CHECK(states(model, s).optimizer == Bytes(147 * (256 * (4 + 2) + 2 * 4)));
  s.precision = Precision::bf16;  // no masters; the states have 8 bits all the same
  CHECK(states(model, s).optimizer == Bytes(147 * (256 * 2 + 2 * 4)));
  s.optimizer = models::Optimizer::lion8bit;
  CHECK(states(model, s).optimizer == Bytes(147 * (256 + 4)));
}

// Hidden 64, one head, inner width 32, one layer; to rank 4, fp32 masters and moments, bf16
// gradients. Projected are four [64, 64], gate and up [32, 64] and down [64, 32]:
//   each moment  4 · 64 · 4 + 3 · 64 · 4 = 1792, and the norms' 2 · 64
//   bases        4 · 64 · 4 + 3 · 32 · 4 = 1408
// Embedding and tail, 4288 and 64 + 4288, keep whole moments.
TEST_CASE("GaLore keeps moments of a subspace, and its basis") {
  const models::ModelSpec model = one_wide_layer(32);
  models::Strategy s = bf16_strategy();
  s.optimizer = models::Optimizer::galore;
  s.galore_rank = 4;
  const std::int64_t masters = 4 * 4096 + 3 * 2048 + 128 + 4288 + 4352;
  CHECK(states(model, s).optimizer ==
        Bytes(4 * masters + 8 * (1792 + 128 + 4288 + 4352) + 2 * 1408));
  s.gpus = 3;  // DDP keeps the same
  CHECK(states(model, s).optimizer ==
        Bytes(4 * masters + 8 * (1792 + 128 + 4288 + 4352) + 2 * 1408));
  // As many dimensions as the shorter side has are no more than there are.
  s.galore_rank = 64;
  const std::int64_t moments = 4 * 4096 + 3 * 64 * 32, bases = 4 * 4096 + 3 * 32 * 32;
  CHECK(states(model, s).optimizer ==
        Bytes(4 * masters + 8 * (moments + 128 + 4288 + 4352) + 2 * bases));
  s.galore_rank = 4;
  s.precision = Precision::fp32;  // no masters; bases as the gradients
  CHECK(states(model, s).optimizer == Bytes(8 * (1792 + 128 + 4288 + 4352) + 4 * 1408));
}

// Scale and factor of a linear's input, and 16 bytes on those of its weight: 32 bytes each. Llama
// has seven in a layer.
TEST_CASE("scales of 8 bits that stay for backward are one tensor of all linears") {
  models::Strategy strategy;
  strategy.precision = Precision::fp8_mixed;
  const Planned p = planned(small_llama(3), strategy, {.seq_len = 16});
  const auto scales = std::ranges::find(p.program.tensors, std::string_view("float8.scales"),
                                        [](const auto& t) { return std::string_view(t.name); });
  REQUIRE(scales != p.program.tensors.end());
  CHECK(scales->bytes == Bytes(3 * 7 * 32));
  CHECK(scales->category == models::Category::workspace);
}

TEST_CASE("a part of less than 4,096 elements keeps fp32, whatever the stage and the precision") {
  const models::ModelSpec model = models::read_model(
      R"({"model_type": "llama", "hidden_size": 32, "num_attention_heads": 1, "head_dim": 32,
          "intermediate_size": 8, "vocab_size": 16, "num_hidden_layers": 1})",
      "small", "small", {});
  models::Strategy s = bf16_strategy();
  s.precision = Precision::bf16;
  s.optimizer = models::Optimizer::adam8bit;
  // Embedding 512, tail 32 + 512; layer 4 · 1024 + 3 · 256 + 2 · 32 = 4928: 20 blocks.
  CHECK(states(model, s).optimizer == Bytes(8 * (512 + 544) + 20 * (2 * 256 + 8)));
  s.gpus = 2;
  s.data.zero = 1;  // 512 and 544 are 2 · 256 and 2 · 272; a shard has 2464 elements, in 8 bits
  CHECK(states(model, s).optimizer == Bytes((8 * (512 + 544) + 20 * (2 * 256 + 8)) / 2));
}

TEST_CASE("a tied table is stored once, and GPT-2 124M is 124 439 808 parameters of 16 bytes") {
  CHECK(states(models::catalog_model("gpt2"), bf16_strategy()).total() ==
        Bytes(124'439'808LL * 16));
}

TEST_CASE("hybrid sharding divides by the group, not by the world") {
  const models::ModelSpec model = small_llama(2);
  models::Strategy s = bf16_strategy();
  s.gpus = 8;
  s.data.zero = 3;
  s.data.shard_group = 4;
  CHECK(states(model, s).total() == Bytes(4 * model.parameter_count().value()));
}

TEST_CASE("pieces are padded to 16 bytes each, and together they are the whole") {
  // Hidden 10, one head, inner width 7, vocabulary 11, one layer, N = 3, bf16: pieces of 8 values.
  //   embedding 11·10 = 110 -> 112 aligned -> 120 = 5·24
  //   layer     q, k, v, o 100 -> 104 each; gate, up, down 70 -> 72 each; norms 10 -> 16 each:
  //             416 + 216 + 32 = 664 -> 672 = 28·24
  //   tail      norm 16 + head 112 = 128 -> 144 = 6·24
  // 936 values for 860 parameters; a third of each part on a rank: 312.
  const models::ModelSpec model = models::read_model(
      R"({"model_type": "llama", "hidden_size": 10, "num_attention_heads": 1, "head_dim": 10,
          "intermediate_size": 7, "vocab_size": 11, "num_hidden_layers": 1})",
      "odd", "odd", {});
  CHECK(model.parameter_count() == Count(860));
  models::Strategy s = bf16_strategy();
  s.gpus = 3;
  const std::int64_t expected[] = {0, 936 * 4 + 312 * 12, 936 * 2 + 312 * 14, 312 * 16};
  for (int zero = 1; zero <= 3; ++zero) {
    s.data.zero = zero;
    CHECK(states(model, s).total() == Bytes(expected[zero]));
  }
  // One copy is aligned only: 112 + 664 + 128.
  s.data.zero = 0;
  CHECK(states(model, s).total() == Bytes(904 * 16));
}

TEST_CASE("LoRA: a frozen 16-bit base, and 16 bytes for each value of an fp32 adapter") {
  const models::ModelSpec model = small_llama(2);
  models::Strategy s = bf16_strategy();
  s.lora = models::Lora{.rank = 8, .targets = {"q_proj", "v_proj"}};
  // 2 layers · 8 · (64 + 64 + 64 + 32).
  const std::int64_t adapters = 2 * 8 * 224, base = model.parameter_count().value();
  CHECK(states(model, s).total() == Bytes(2 * base + 16 * adapters));
  s.lora->dtype = DType::bf16;  // 2 + 2 + 12
  CHECK(states(model, s).total() == Bytes(2 * base + 16 * adapters));
  s.precision = Precision::bf16;  // 2 + 2 + 4
  CHECK(states(model, s).total() == Bytes(2 * base + 8 * adapters));
  s.lora->dtype = DType::fp32;  // 4 + 4 + 8
  CHECK(states(model, s).total() == Bytes(2 * base + 16 * adapters));
}

// gpt2: 124,439,808 parameters, of which the tied table is the largest unit's part that steps. fp32
// weights, exp_avg and exp_avg_sq stay on the host; a unit's gradients and new weights pass through
// buffers of 16 bits.
TEST_CASE(
    "an offloaded optimizer's states are on the host, with one unit's buffers, and else nothing") {
  const models::ModelSpec model = models::catalog_model("gpt2");
  planner::Question question;
  question.model = &model;
  question.strategy = bf16_strategy();
  question.batch.seq_len = 8;
  const auto host = [&] {
    planner::StackStep step;
    planner::plimsoll_stack::write_step(question, planner::model_parts(model, question.strategy),
                                        step);
    return step.host;
  };
  CHECK(host().pinned == 0_B);
  CHECK(host().pageable == 0_B);
  question.strategy.offload.optimizer = true;
  const Bytes expected(12 * 124'439'808LL + (2 + 2) * 50'257LL * 768);
  CHECK(host().pinned >= expected);
  CHECK(host().pinned <= expected + 64_KiB);  // blocks are rounded up
  CHECK(host().pageable == 0_B);
  question.strategy.offload.pinned = false;
  CHECK(host().pinned == 0_B);
  CHECK(host().pageable >= expected);
}

TEST_CASE("plimsoll refuses by name what it does not execute") {
  const models::ModelSpec model = small_llama(2);
  const auto refusal = [&](auto change) -> std::string {
    planner::Question question;
    question.model = &model;
    question.strategy = bf16_strategy();
    question.batch.seq_len = 8;
    change(question.strategy);
    planner::StackStep step;
    try {
      planner::plimsoll_stack::write_step(question, planner::model_parts(model, question.strategy),
                                          step);
    } catch (const Error& error) {
      return error.message().substr(0, error.message().find(' '));
    }
    return "";
  };
  using S = models::Strategy;
  CHECK(refusal([](S&) {}) == "");
  CHECK(refusal([](S& s) { s.precision = Precision::fp16; }) == "--precision");
  CHECK(refusal([](S& s) { s.precision = Precision::fp8_mixed; }) == "--precision");
  CHECK(refusal([](S& s) { s.grad_dtype = DType::fp16; }) == "--grad-dtype");
  CHECK(refusal([](S& s) { s.data.shard_group = 2; }) == "--shard-group");
  CHECK(refusal([](S& s) { s.optimizer = models::Optimizer::muon; }) == "--optimizer");
  CHECK(refusal([](S& s) { s.optimizer_impl = models::OptimizerImpl::foreach; }) ==
        "--optimizer-impl:");
  CHECK(refusal([](S& s) {
          s.precision = Precision::fp32;
          s.master_weights = true;
        }) == "--master-weights");
  CHECK(refusal([](S& s) {
          s.precision = Precision::fp16_mixed;
          s.master_weights = false;
        }) == "--master-weights");
  CHECK(refusal([](S& s) { s.lora = models::Lora{.dtype = DType::fp16, .targets = {"q_proj"}}; }) ==
        "--adapter-dtype");
}
