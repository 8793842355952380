// Whole plans: states in closed form, sums, bounds, remedies.
#include "planner/plan.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <string_view>

#include "models/gpu_catalog.h"
#include "models/model_catalog.h"
#include "models/model_reader.h"
#include "planner/stacks/stack_info.h"
#include "tests/near.h"

using namespace plimsoll;
using models::Optimizer;
using models::Precision;
using models::RecomputeKind;
using models::Strategy;

namespace {

struct Asked {
  models::ModelSpec model;
  planner::Question question;
  explicit Asked(const char* name, const char* gpu = "h100-sxm-80gb")
      : model(models::catalog_model(name)) {
    question.cluster.gpu = models::find_gpu(gpu);
    question.batch.seq_len = 1024;
  }
  reports::Plan plan() {
    question.model = &model;
    return planner::plan(question);
  }
};

// llama-2-7b: 6,738,415,616 parameters; every axis divides by 8 and every tensor by 512 B.
constexpr std::int64_t kP = 6'738'415'616;

reports::States states(Precision precision, int zero, std::int64_t gpus) {
  Asked asked("llama-2-7b");
  asked.question.strategy.precision = precision;
  asked.question.strategy.data.zero = zero;
  asked.question.strategy.gpus = gpus;
  asked.question.remedies = false;
  return asked.plan().states;
}

}  // namespace

TEST_CASE("PyTorch's model states are the closed forms") {
  // fp32, and autocast on fp32 weights: 4 + 4 + 8 bytes per parameter; FSDP divides all of them.
  CHECK(states(Precision::fp32, 0, 1).total() == 16 * Bytes(kP));
  CHECK(states(Precision::bf16_mixed, 0, 8).total() == 16 * Bytes(kP));
  CHECK(states(Precision::bf16_mixed, 3, 8).total() == 2 * Bytes(kP));
  CHECK(states(Precision::fp32, 2, 8).total() == 2 * Bytes(kP));
  // Pure bf16: 2 + 2 + 4.
  CHECK(states(Precision::bf16, 0, 1).total() == 8 * Bytes(kP));
  CHECK(states(Precision::bf16, 3, 8).total() == Bytes(kP));
  // ZeroRedundancyOptimizer gives whole parameters to ranks: the fullest has at least an eighth,
  // and at most one more of the largest tensors (the embedding, 32000 x 4096).
  const Bytes optimizer = states(Precision::fp32, 1, 8).optimizer;
  CHECK(optimizer >= Bytes(kP));
  CHECK(optimizer <= Bytes(kP) + 8 * Bytes(32'000LL * 4096));
}

TEST_CASE("FSDP pads each parameter's first axis, and the shards hold the whole") {
  Asked asked("gpt2");  // 768 wide: neither 768 nor 50257 rows divide by 7
  asked.question.strategy.precision = Precision::fp32;
  asked.question.strategy.gpus = 7;
  asked.question.strategy.data.zero = 3;
  const reports::Plan plan = asked.plan();
  const Bytes whole = 4 * Bytes(124'439'808);
  CHECK(plan.states.parameters * 7 >= whole);
  // 148 tensors, each at most one row and 512 B too long on each of 7 ranks; rows of at most 3072.
  CHECK(plan.states.parameters * 7 <= whole + Bytes(148LL * 7 * (4 * 3072 + 512)));
}

TEST_CASE("the categories of every plan sum to its peak, and bounds hold") {
  for (const char* name : {"gpt2", "llama-3.2-1b", "qwen2.5-0.5b", "qwen3-0.6b"})
    for (const int zero : {0, 1, 2, 3})
      for (const RecomputeKind kind :
           {RecomputeKind::none, RecomputeKind::full, RecomputeKind::sqrt})
        for (const Precision precision :
             {Precision::fp32, Precision::bf16_mixed, Precision::bf16}) {
          Asked asked(name);
          asked.question.strategy.gpus = 4;
          asked.question.strategy.data.zero = zero;
          asked.question.strategy.recompute.kind = kind;
          asked.question.strategy.precision = precision;
          const reports::Plan plan = asked.plan();
          CAPTURE(name);
          CAPTURE(zero);
          REQUIRE(reports::sum(plan.at_peak) == plan.peak);
          Bytes highest;
          for (const reports::TimelinePoint& point : plan.timeline) {
            REQUIRE(reports::sum(point.by_category) == point.high_water);
            highest = std::max(highest, point.high_water);
          }
          REQUIRE(highest == plan.peak);
          REQUIRE(plan.peak >= plan.resident);
          REQUIRE(plan.peak >= plan.states.total());  // foreach AdamW: all states and a copy
          REQUIRE(plan.reserved >= plan.peak);
          REQUIRE(plan.device >= plan.reserved);
          REQUIRE(plan.hardware_flops_per_step >= plan.model_flops_per_step);
        }
}

TEST_CASE("model FLOPs are 6 N_mm + 3 L a (d_qk + d_v) s for each token") {
  // gpt2: weights in GEMMs: 12 (768·2304 + 768² + 2·768·3072) + 50257·768 = 123,532,032;
  // attention 3·12·12·(64 + 64)·1024 = 56,623,104; times 1024 tokens.
  Asked asked("gpt2");
  const double per_token = 6.0 * 123'532'032 + 56'623'104;
  CHECK(tests::near(asked.plan().model_flops_per_step, per_token * 1024, 1e-12));
}

TEST_CASE("a plan that does not fit says what would help, each gain found by planning again") {
  Asked asked("llama-3.1-8b");
  asked.question.batch.seq_len = 4096;
  const reports::Plan plan = asked.plan();
  CHECK_FALSE(plan.fits);
  REQUIRE(plan.remedies.size() >= 2);
  for (const reports::Remedy& remedy : plan.remedies) CHECK(remedy.saves > Bytes(0));
  const auto sharded = std::find_if(plan.remedies.begin(), plan.remedies.end(),
                                    [](const auto& r) { return r.option == "--gpus 8 --zero 3"; });
  REQUIRE(sharded != plan.remedies.end());
  CHECK(sharded->fits);
  // The remedy, asked for by itself, gives what was promised.
  asked.question.strategy.gpus = 8;
  asked.question.strategy.data.zero = 3;
  const reports::Plan again = asked.plan();
  CHECK(again.fits);
  CHECK(again.device == sharded->device);
  CHECK(plan.device - again.device == sharded->saves);
}

TEST_CASE("options are joined where no single one suffices, and adapters fit 8 billion on 24 GB") {
  Asked asked("llama-3.1-8b", "rtx-3090");
  asked.question.batch.seq_len = 4096;
  const reports::Plan plan = asked.plan();
  const auto called = [&](const std::string& option) {
    const auto found =
        std::ranges::find(plan.remedies, option, [](const auto& r) { return r.option; });
    REQUIRE_MESSAGE(found != plan.remedies.end(), option);
    return *found;
  };
  const std::string lora = "--lora-rank 16 --lora-targets all-linear --param-dtype bf16";
  CHECK_FALSE(called(lora).fits);
  const std::string liger = "--kernels liger --recompute full " + lora;
  CHECK(called(liger).fits);
  CHECK(called(liger).concession.starts_with("the Trainer's use_liger_kernel=True"));
  // 8,030,261,248 weights in bf16, one layer's activations, no logits.
  CHECK(called(liger).device < 20_GiB);
  CHECK(called("--precision bf16").concession ==
        "no fp32 masters: updates smaller than 1/256 of a weight can be lost");
  CHECK(plan.remedies.back().option == "--precision bf16");
  // Who keeps the kernels is offered their loss alone, which is code.
  asked.question.fixed.emplace_back("kernels");
  const reports::Plan eager = asked.plan();
  const auto joined =
      std::ranges::find(eager.remedies, "--loss fused --recompute full " + lora,
                        [](const reports::Remedy& remedy) { return remedy.option; });
  REQUIRE(joined != eager.remedies.end());
  CHECK(joined->fits);
  CHECK(joined->concession.starts_with("fused loss: no option of a trainer switches it on"));
  CHECK(joined->device < 20_GiB);
  CHECK(std::ranges::none_of(eager.remedies, [](const reports::Remedy& remedy) {
    return remedy.option.find("liger") != std::string::npos;
  }));
}

TEST_CASE("nothing is joined that a single option makes needless") {
  Asked asked("gpt2-xl", "rtx-3060-12gb");
  const reports::Plan plan = asked.plan();
  bool enough = false;
  for (const reports::Remedy& remedy : plan.remedies) {
    // Up to the first single option that suffices.
    const bool single = remedy.option == "--gpus 8 --zero 3";
    if (single) enough = remedy.fits;
    if (enough && !single) CHECK(remedy.option.find("--recompute") == std::string::npos);
  }
  CHECK(enough);
}

TEST_CASE("remedies change nothing that a file fixed, and divide a global batch anew") {
  Asked asked("llama-3.1-8b");
  asked.question.strategy.gpus = 2;
  asked.question.batch = {.seq_len = 4096, .micro_batch = 2, .grad_accum = 6};
  asked.question.given = {"global-batch", "micro-batch", "gpus"};
  asked.question.fixed = {"zero", "precision"};
  for (const reports::Remedy& remedy : asked.plan().remedies) {
    CAPTURE(remedy.option);
    CHECK(remedy.option.find("--zero") == std::string::npos);
    CHECK(remedy.option.find("--precision") == std::string::npos);
    CHECK(remedy.option.find("--grad-accum") == std::string::npos);
    // 24 sequences: 16 GPUs of one each cannot share them.
    CHECK(remedy.option.find("--gpus 16") == std::string::npos);
  }
}

// overheads.json, hopper: a context of at most 1,223,688,192 bytes, one communicator of at most
// 1,557,135,360; pytorch's reserved bytes at most 50 thousandths above what unlucky steps reserve.
TEST_CASE("the high end of a plan counts every assumed overhead at the end of its range") {
  Asked asked("gpt2");
  asked.question.strategy.gpus = 8;
  const reports::Plan plan = asked.plan();
  REQUIRE(plan.high_end.has_value());
  CHECK(plan.high_end->overhead == Bytes(2'780'823'552));
  const Bytes most(plan.high_end->reserved.value() / 1050 * 1000);
  CHECK(most + 2_MiB >= plan.reserved);
  CHECK(most < plan.reserved + Bytes(plan.reserved.value() / 4));
  CHECK(plan.high_end->fits);
  // Room for what is typical and not for more.
  asked.question.cluster.memory = plan.device;
  const reports::Plan tight = asked.plan();
  CHECK(tight.fits);
  CHECK_FALSE(tight.high_end->fits);
  asked.question.cluster.memory = plan.high_end->device() + 1_MiB;
  CHECK(asked.plan().high_end->fits);
  // Our own arena is planned to the byte, so only what lies outside it is assumed.
  asked.question.strategy.stack = models::Stack::plimsoll;
  const reports::Plan own = asked.plan();
  CHECK(own.high_end->reserved == own.reserved);
  CHECK(own.high_end->overhead > own.overhead.total());
  // Nothing is assumed about a device that nobody named.
  asked.question.cluster.gpu.reset();
  CHECK_FALSE(asked.plan().high_end.has_value());
}

TEST_CASE("Transformers before 4.49 shifts a copy of the logits of several sequences") {
  // 2 sequences of 1024 tokens score 2 · 1023 of them, 128,256 logits of 4 bytes each.
  constexpr std::int64_t kShifted = 2 * 1023 * 128'256LL * 4;
  const auto shifted = [](models::Release release, std::int64_t sequences) {
    Asked asked("llama-3.2-1b");
    asked.question.strategy.transformers = release;
    asked.question.batch.micro_batch = sequences;
    asked.question.detail = planner::Detail::full;
    const reports::Plan plan = asked.plan();
    for (const reports::TensorLine& tensor : plan.tensors)
      if (tensor.name == "loss.logits.shifted") return tensor.bytes.value();
    return std::int64_t{0};
  };
  CHECK(shifted({4, 48, 3}, 2) == kShifted);
  CHECK(shifted({4, 45, 0}, 2) == kShifted);
  CHECK(shifted({4, 48, 3}, 1) == 0);  // of one sequence they are a view
  CHECK(shifted({4, 49, 0}, 2) == 0);
  CHECK(shifted(models::kTransformers, 2) == 0);
}

TEST_CASE("releases whose code of a family is not the planned one are refused by name") {
  const auto refusal = [](const char* model, models::Release release,
                          models::Loss loss = models::Loss::full) -> std::string {
    Asked asked(model);
    asked.question.strategy.transformers = release;
    asked.question.strategy.loss = loss;
    try {
      asked.plan();
    } catch (const Error& error) {
      CHECK(error.kind() == ErrorKind::unsupported);
      return error.message();
    }
    return "";
  };
  CHECK(refusal("gpt2", {4, 50, 3}) ==
        "--transformers-version 4.50.3: the steps of gpt2 are modelled from 4.51.0 on");
  CHECK(refusal("gpt2", {4, 51, 0}) == "");
  CHECK(refusal("qwen2.5-0.5b", {4, 55, 4}).find("from 4.56.0 on") != std::string::npos);
  CHECK(refusal("qwen3-8b", {4, 48, 0}).find("from 4.51.0 on") != std::string::npos);
  CHECK(refusal("llama-3.2-1b", {4, 45, 0}) == "");
  CHECK(refusal("llama-3.2-1b", {4, 48, 0}, models::Loss::fused).find("--loss full only") !=
        std::string::npos);
}

// Peaks of torch 2.11's allocator on the dry CUDA runtime of tools/oracle with compute
// capability 7.5 (start_dry_cuda(capability=(7, 5), multiprocessors=40)), where SDPA takes the
// memory-efficient kernel for GPT-2's fp16, and the math path for bf16 and for grouped queries.
TEST_CASE("below compute capability 8 there is no flash attention, and no fused one in bf16") {
  struct Case {
    const char* model;
    models::Precision precision;
    std::int64_t seq_len, peak;
  };
  const Case cases[] = {{"gpt2", models::Precision::bf16_mixed, 1024, 4653206016},
                        {"gpt2", models::Precision::fp16_mixed, 1024, 3239832576},
                        {"qwen2.5-0.5b", models::Precision::fp16_mixed, 2048, 20039010304},
                        {"qwen2.5-0.5b", models::Precision::bf16, 2048, 15631736832}};
  for (const Case& c : cases) {
    Asked asked(c.model);
    asked.question.cluster.gpu = models::find_gpu("t4");
    asked.question.strategy.precision = c.precision;
    asked.question.batch.seq_len = c.seq_len;
    const reports::Plan plan = asked.plan();
    CAPTURE(c.model);
    CHECK(tests::near(plan.peak.real(), static_cast<double>(c.peak), 0.004));
    const bool bf16 = c.precision != models::Precision::fp16_mixed;
    CHECK(plan.time.step_seconds.has_value() == !bf16);
    REQUIRE(plan.advice.empty() == !bf16);
    if (bf16) CHECK(plan.advice[0].starts_with("Tesla T4 has no bf16 units"));
  }
}

// torch 2.11's allocator on the dry runtime again, of GPT-2 with another activation: ReLU keeps its
// result, which the next GEMM keeps as well, and GELU its input beside it.
TEST_CASE("ReLU keeps nothing of its own") {
  struct Case {
    std::string activation;
    models::Precision precision;
    std::int64_t peak;
  };
  const Case cases[] = {{"relu", models::Precision::bf16_mixed, 5457395200},
                        {"relu", models::Precision::bf16, 4301143040},
                        {"gelu", models::Precision::bf16_mixed, 5764614656},
                        {"gelu", models::Precision::bf16, 4604443648}};
  for (const Case& c : cases) {
    Asked asked("gpt2");
    const std::string config =
        R"({"model_type":"gpt2","n_embd":768,"n_layer":12,"n_head":12,"vocab_size":50257,)"
        R"("activation_function":")" +
        c.activation + "\"}";
    asked.model = models::read_model(config, "gpt2", "config.json", {});
    asked.question.strategy.precision = c.precision;
    asked.question.batch.micro_batch = 4;
    CHECK(tests::near(asked.plan().peak.real(), static_cast<double>(c.peak), 0.0015));
  }
}

TEST_CASE("each stack is registered once, and one that is not is refused by name") {
  CHECK(planner::stacks().size() == 3);
  for (const planner::StackInfo* info : planner::stacks()) {
    CAPTURE(info->title);
    CHECK(&planner::stack_info(info->kind) == info);
    CHECK(&planner::stack_info(info->processes) != nullptr);
    for (const char* rung : info->rungs) CHECK(rung != nullptr);
  }
  CHECK_THROWS_WITH_AS(planner::stack_info(models::Stack::megatron),
                       "this --stack is not modelled yet (pytorch, deepspeed and plimsoll are)",
                       Error);
}

TEST_CASE("a shard group that does not divide the ranks is bad input") {
  Asked asked("gpt2");
  asked.question.strategy.gpus = 8;
  asked.question.strategy.data = {.zero = 3, .shard_group = 3};
  CHECK_THROWS_AS(asked.plan(), Error);
}

TEST_CASE("families without a step program answer their states and say so") {
  Asked asked("deepseek-v2-lite");
  const reports::Plan plan = asked.plan();
  CHECK(plan.states_only);
  CHECK(plan.parameters == Count(15'706'484'224));
  CHECK(plan.states.total() == 16 * Bytes(15'706'484'224));
  REQUIRE(!plan.advice.empty());
  CHECK(plan.advice[0].find("deepseek_v2") != std::string::npos);
}

TEST_CASE("remedies cannot be found where the capacity is not known") {
  Asked asked("llama-3.1-8b");
  asked.question.cluster.gpu.reset();
  const reports::Plan plan = asked.plan();
  CHECK_FALSE(plan.capacity.has_value());
  CHECK(plan.remedies.empty());
}

// 8 GPUs take 16 sequences at once: 32 are divided anew, 24 cannot be.
TEST_CASE("a global batch stays what it is when a remedy changes the number of GPUs") {
  Asked asked("llama-3.1-8b");
  asked.question.strategy.gpus = 2;
  asked.question.strategy.data.zero = 3;
  asked.question.batch = {.seq_len = 8192, .micro_batch = 2, .grad_accum = 6};
  asked.question.given = {"global-batch", "micro-batch"};
  const auto offers = [&](const char* option) {
    for (const reports::Remedy& remedy : asked.plan().remedies)
      if (remedy.option.find(option) != std::string::npos) return true;
    return false;
  };
  CHECK_FALSE(offers("--gpus 8"));
  asked.question.batch.grad_accum = 8;
  CHECK(offers("--gpus 8"));
}
