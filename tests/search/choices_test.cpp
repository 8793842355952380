// What people run, and what must never get worse.
#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <functional>
#include <tuple>

#include "models/gpu_catalog.h"
#include "models/model_catalog.h"
#include "planner/search/axes.h"
#include "planner/search/concessions.h"
#include "planner/search/reasons.h"
#include "planner/search/search.h"
#include "planner/search/shortage.h"
#include "tests/search/scope_of.h"

using namespace plimsoll;
using namespace plimsoll::planner;
using namespace plimsoll::planner::search;

namespace {

Scope scope_of(const models::ModelSpec& model, const char* gpu, std::int64_t gpus,
               std::int64_t seq_len) {
  Scope scope = tests::scope_of(model, gpu, gpus, seq_len);
  scope.threads = 2;
  return scope;
}

bool has(const std::vector<std::string>& sentences, const std::string& part) {
  return std::ranges::any_of(
      sentences, [&](const std::string& s) { return s.find(part) != std::string::npos; });
}

// Concession, objective, speed of the fastest: less is better; what cannot be done at all is worst.
using Worth = std::tuple<int, double, double>;

Worth worth_of(const Result& result) {
  if (result.ranked.empty()) return {1 << 20, 0, 0};
  const Rank& rank = result.ranked.front().rank;
  return {rank.concession, rank.first, -result.fastest};
}

Worth worth_of(const Scope& scope) {
  return worth_of(search::search(scope));
}

}  // namespace

// Published runs: torchtitan's Llama 3.1 8B on 8 H100 with FSDP2 (arXiv 2410.06511, table 1), the
// FSDP tutorial's and llama-recipes' Llama 2 7B on 8 A100-40GB, nanoGPT's and HF's GPT-2 1.5B on
// one A100, alpaca-lora's 7B on one 24 GB card, llama-recipes' Llama 2 70B on 64 A100-80GB.
TEST_CASE("Llama 3 8B is trained in full on 8 H100 by FSDP") {
  const models::ModelSpec model = models::catalog_model("llama-3-8b");
  const Result result = search::search(scope_of(model, "h100-sxm-80gb", 8, 8192));
  REQUIRE(!result.ranked.empty());
  const Setting& best = result.ranked.front().setting;
  CHECK(best.concession == 0);
  CHECK(best.strategy.gpus == 8);
  CHECK(best.strategy.stack == models::Stack::pytorch);
  CHECK(best.strategy.data.zero >= 2);
}

TEST_CASE("Llama 2 7B is trained in full on 8 A100 of 40 GB, sharded") {
  const models::ModelSpec model = models::catalog_model("llama-2-7b");
  const Result result = search::search(scope_of(model, "a100-40gb", 8, 4096));
  REQUIRE(!result.ranked.empty());
  CHECK(result.ranked.front().setting.concession == 0);
  CHECK(result.ranked.front().setting.strategy.data.zero >= 2);
}

TEST_CASE("GPT-2 1.5B is trained on one A100 of 40 GB") {
  const models::ModelSpec model = models::catalog_model("gpt2-xl");
  const Result result = search::search(scope_of(model, "a100-40gb", 1, 1024));
  REQUIRE(!result.ranked.empty());
  CHECK(result.ranked.front().setting.concession == 0);
}

TEST_CASE("7B on one card of 24 GB is a matter of adapters, and the reasons say so") {
  const models::ModelSpec model = models::catalog_model("llama-2-7b");
  const Scope scope = scope_of(model, "4090", 1, 1024);
  const Result result = search::search(scope);
  REQUIRE(!result.ranked.empty());
  CHECK(result.ranked.front().setting.strategy.lora.has_value());
  CHECK(has(reasons(scope, result.ranked, {}).front(), "Training the whole model"));
}

// Answer.AI's FSDP-QLoRA (github.com/AnswerDotAI/fsdp_qlora): 70B on two cards of 24 GB.
TEST_CASE("70B on two cards of 24 GB: a packed base that FSDP keeps on the host, and why") {
  const models::ModelSpec model = models::catalog_model("llama-3.1-70b");
  Scope scope = scope_of(model, "4090", 2, 512);
  const Result result = search::search(scope);
  REQUIRE(!result.ranked.empty());
  const Found& best = result.ranked.front();
  CHECK(options_of(best.setting) ==
        "--lora-rank 16 --lora-alpha 32 --lora-targets all-linear --gpus 2 --quantize nf4-dq "
        "--quant-storage bf16 --param-dtype bf16 --offload params --recompute full --zero 3 "
        "--seq-len 512 --micro-batch 1");
  CHECK(!best.throughput.known);
  CHECK(!best.plan.time.step_seconds);
  const std::vector<std::string> why = reasons(scope, result.ranked, {}).front();
  CHECK(has(why, "LoRA in bf16-mixed does not fit"));
  CHECK(has(why, "on a packed base that stays on the GPUs does not fit"));
  CHECK(has(why, "A packed base is a concession"));
  CHECK(has(why, "Offloading is a concession"));
  scope.most_concession = kMostWithoutPacking;
  CHECK(search::search(scope).ranked.empty());
}

TEST_CASE("13B on one card of 24 GB packs its base and stays on the GPU; 8B does neither") {
  const models::ModelSpec large = models::catalog_model("llama-2-13b");
  const Result packed = search::search(scope_of(large, "4090", 1, 2048));
  REQUIRE(!packed.ranked.empty());
  const Setting& best = packed.ranked.front().setting;
  CHECK(best.concession == (kAdapters | kPackedBase));
  CHECK(best.strategy.quantize->held_in == DType::uint8);
  CHECK(packed.ranked.front().throughput.known);
  const models::ModelSpec small = models::catalog_model("llama-3.1-8b");
  for (const Found& found : search::search(scope_of(small, "4090", 1, 1024)).ranked) {
    CHECK(!found.setting.strategy.quantize);
    CHECK(!found.setting.strategy.offload.any());
  }
}

// bf16 weights, gradients and 8-bit states: 6 bytes a parameter, 40 GB of 7B; AdamW's are 54 GB.
TEST_CASE("who keeps adapters out is offered 8-bit states before offloading") {
  const models::ModelSpec model = models::catalog_model("llama-2-7b");
  Scope scope = scope_of(model, "a100-pcie-80gb", 1, 1024);
  scope.base.cluster.memory = Bytes(std::int64_t{52} << 30);
  scope.without["adapters"] = {"lora"};
  scope.without["stack"] = {"plimsoll"};
  const Result result = search::search(scope);
  REQUIRE(!result.ranked.empty());
  CHECK(result.ranked.front().setting.concession == (kStatesIn8Bits | kOtherNumerics));
  CHECK(result.ranked.front().setting.strategy.optimizer == models::Optimizer::adam8bit);
  CHECK(has(reasons(scope, result.ranked, {}).front(), "Optimizer states in 8 bits"));
}

TEST_CASE("Llama 2 70B is trained in full on 64 A100 of 80 GB, recomputing") {
  const models::ModelSpec model = models::catalog_model("llama-2-70b");
  const Scope scope = scope_of(model, "a100-80gb", 64, 4096);
  const Result result = search::search(scope);
  REQUIRE(!result.ranked.empty());
  const Setting& best = result.ranked.front().setting;
  CHECK(best.concession == 0);
  CHECK(best.strategy.data.zero == 3);
  CHECK(best.strategy.recompute.kind != models::RecomputeKind::none);
  const std::vector<std::string> why = reasons(scope, result.ranked, {}).front();
  CHECK(has(why, "Plain DDP does not fit"));
  CHECK(has(why, "ZeRO-2 (FSDP without resharding) does not fit"));
  CHECK(has(why, "Without recomputation"));
}

// Autocast keeps the residual stream in fp32 where FSDP's policy computes in bf16, and a sharded
// optimizer steps an eighth: both are said.
TEST_CASE("of a small model that needs no sharding the reasons say what plain DDP costs") {
  const models::ModelSpec model = models::catalog_model("gpt2");
  Scope scope = scope_of(model, "h100-sxm-80gb", 8, 1024);
  scope.global_batch = 64;
  const Result result = search::search(scope);
  REQUIRE(!result.ranked.empty());
  const std::vector<std::string> why = reasons(scope, result.ranked, {}).front();
  CHECK((result.ranked.front().setting.strategy.data.zero == 0 || has(why, "Plain DDP fits")));
  CHECK(!has(why, "least sharding that does it"));
}

// use_liger_kernel is one switch, where chunked losses and checkpoints of several layers are code.
TEST_CASE("adapters of a model with a large vocabulary on 24 GB get Liger's kernels, and why") {
  const models::ModelSpec model = models::catalog_model("qwen3-8b");
  Scope scope = scope_of(model, "rtx-4090", 1, 4096);
  scope.only = {{"stack", {"pytorch"}}, {"adapters", {"lora"}}, {"attention", {"flash"}}};
  const Result result = search::search(scope);
  REQUIRE(!result.ranked.empty());
  const Setting& best = result.ranked.front().setting;
  CHECK(best.strategy.kernels == models::Kernels::liger);
  CHECK(best.strategy.recompute.kind == models::RecomputeKind::full);
  CHECK_FALSE(effort(best).code);
  const std::vector<std::string> why = reasons(scope, result.ranked, {}).front();
  CHECK(has(why, "Without Liger's kernels it fits and is "));
  CHECK(has(why, "because of compute (its norms, rotary embedding and activations are several"));
  // Where they are ruled out, the vocabulary's logits ask for code.
  scope.only["kernels"] = {"eager"};
  const Result eager = search::search(scope);
  REQUIRE(!eager.ranked.empty());
  CHECK(effort(eager.ranked.front().setting).code);
  CHECK(eager.ranked.front().throughput.tokens_per_second <
        result.ranked.front().throughput.tokens_per_second);
  // GPT-2 has none: nothing is said of them.
  const models::ModelSpec gpt2 = models::catalog_model("gpt2");
  Scope small = scope_of(gpt2, "rtx-4090", 1, 1024);
  small.only = {{"stack", {"pytorch"}}, {"adapters", {"full"}}, {"attention", {"flash"}}};
  const Result without = search::search(small);
  REQUIRE(!without.ranked.empty());
  CHECK(without.ranked.front().setting.strategy.kernels == models::Kernels::eager);
  CHECK(!has(reasons(small, without.ranked, {}).front(), "Liger"));
}

// A step's parts are those of the step itself, and its limit is named. Where little memory is the
// aim, no larger batch is spoken of.
TEST_CASE(
    "the reasons say what a step takes and what limits it, and of a larger batch where speed is "
    "the aim") {
  const models::ModelSpec model = models::catalog_model("gpt2");
  Scope scope = scope_of(model, "rtx-4090", 1, 1024);
  scope.only = {{"stack", {"pytorch"}}, {"adapters", {"full"}}, {"loss", {"full"}}};
  const auto why = [&] {
    const Result result = search::search(scope);
    REQUIRE(!result.ranked.empty());
    return reasons(scope, result.ranked, {}).front();
  };
  const std::vector<std::string> fast = why();
  CHECK(has(fast, "A step takes "));
  CHECK(has(fast, " of compute, "));
  CHECK(has(fast, " for the optimizer. The limit is "));
  CHECK(has(fast, "Micro-batch "));
  CHECK(!has(fast, "of communication"));
  scope.objective = Objective::memory;
  CHECK(!has(why(), "Micro-batch "));
}

// One card: DeepSpeed computes in bf16 where autocast casts; that must not pass without a word.
TEST_CASE("where DeepSpeed stands first the reasons say what PyTorch alone would do") {
  const models::ModelSpec model = models::catalog_model("gpt2-large");
  Scope scope = scope_of(model, "h100", 1, 1024);
  const Result result = search::search(scope);
  REQUIRE(!result.ranked.empty());
  const std::vector<std::string> why = reasons(scope, result.ranked, {}).front();
  REQUIRE(result.ranked.front().setting.strategy.stack == models::Stack::deepspeed);
  CHECK(has(why, "PyTorch without DeepSpeed"));
  scope.without["stack"] = {"pytorch"};  // nobody asks for it then
  const Result without = search::search(scope);
  CHECK(!has(reasons(scope, without.ranked, {}).front(), "PyTorch without DeepSpeed"));
}

TEST_CASE("our own runtime stands first only with a word about those that GPUs have run") {
  const models::ModelSpec model = models::catalog_model("qwen2.5-14b");
  const Scope scope = scope_of(model, "rtx-3090", 2, 4096);
  const Result result = search::search(scope);
  REQUIRE(!result.ranked.empty());
  REQUIRE(result.ranked.front().setting.strategy.stack == models::Stack::plimsoll);
  CHECK(has(reasons(scope, result.ranked, {}).front(), "on PyTorch or DeepSpeed"));
  Scope own = scope;  // who asks for nothing else is told nothing of them
  own.only["stack"] = {"plimsoll"};
  CHECK_FALSE(has(reasons(own, search::search(own).ranked, {}).front(), "on PyTorch or DeepSpeed"));
}

TEST_CASE("the fewest GPUs come with what one fewer would need") {
  const models::ModelSpec model = models::catalog_model("llama-3.2-3b");
  Scope scope = scope_of(model, "a100-40gb", 8, 2048);
  scope.objective = Objective::gpus;
  const Result result = search::search(scope);
  REQUIRE(!result.ranked.empty());
  const std::int64_t gpus = result.ranked.front().setting.strategy.gpus;
  REQUIRE(gpus > 1);
  const std::string fewer =
      gpus == 2 ? "One GPU needs" : "With " + std::to_string(gpus - 1) + " GPUs each needs";
  CHECK(has(reasons(scope, result.ranked, {}).front(), fewer));
}

// Positions of GPT-2 end at 1,024, which every rung reaches; what one reaches is said where it is
// more.
TEST_CASE("no reason says that another plan reaches what the plan itself does") {
  const models::ModelSpec model = models::catalog_model("gpt2");
  Scope scope = scope_of(model, "a100-40gb", 2, 512);
  scope.objective = Objective::context;
  const Result result = search::search(scope);
  REQUIRE(!result.ranked.empty());
  CHECK(result.ranked.front().setting.batch.seq_len == 1024);
  for (const std::vector<std::string>& why : reasons(scope, result.ranked, {}))
    CHECK_FALSE(has(why, " reaches "));
}

// BLOOM's positions are slopes of its heads (ALiBi): there are as many as there is memory for.
TEST_CASE("where positions have no end, the longest sequence is what fits") {
  models::ModelSpec model = models::catalog_model("bloom-560m");
  model.max_positions = 0;
  Scope scope = scope_of(model, "4090", 1, 512);
  scope.objective = Objective::context;
  scope.only["stack"] = {"pytorch"};
  const Result result = search::search(scope);
  REQUIRE(!result.ranked.empty());
  const Found& best = result.ranked.front();
  CHECK(best.setting.batch.seq_len > 512);
  Question question = scope.base;
  question.strategy = best.setting.strategy, question.batch = best.setting.batch;
  CHECK(planner::plan(question).verdict != reports::Verdict::does_not_fit);
  question.batch.seq_len += 1024;
  CHECK_FALSE(planner::plan(question).high_end->fits);
}

// The estimate is not that good.
TEST_CASE("no reason claims a difference of less than one per cent") {
  const models::ModelSpec model = models::catalog_model("llama-2-7b");
  const Scope scope = scope_of(model, "a100-40gb", 8, 4096);
  const Result result = search::search(scope);
  for (const std::vector<std::string>& why : reasons(scope, result.ranked, {}))
    for (const std::string& sentence : why) {
      CAPTURE(sentence);
      CHECK(!sentence.starts_with("0."));
    }
}

TEST_CASE("more memory, more GPUs or fewer constraints never make the best plan worse") {
  const models::ModelSpec model = models::catalog_model("llama-3.2-1b");
  for (const Objective objective :
       {Objective::throughput, Objective::memory, Objective::batch, Objective::context}) {
    CAPTURE(static_cast<int>(objective));
    Scope small = scope_of(model, "4090", 2, 2048);
    small.objective = objective;
    small.without["recompute"] = {"every"};
    const Worth base = worth_of(small);
    Scope change = small;
    change.base.cluster.memory = Bytes(change.base.cluster.gpu->cuda_total.bytes.value() * 3 / 2);
    CHECK(worth_of(change) <= base);
    change = small;
    change.gpus = change.base.strategy.gpus = 4;
    CHECK(worth_of(change) <= base);
    change = small;
    change.without.clear();
    CHECK(worth_of(change) <= base);
    change = small;
    change.only["stack"] = {"pytorch"};
    CHECK(base <= worth_of(change));
    change = small;
    change.fixed.insert("recompute");
    CHECK(base <= worth_of(change));
  }
}

TEST_CASE("plans that are listed fit with what is assumed at its high end, unless that is waived") {
  const models::ModelSpec model = models::catalog_model("llama-3.2-1b");
  Scope scope = scope_of(model, "a100-40gb", 8, 4096);
  const Result careful = search::search(scope);
  REQUIRE(!careful.ranked.empty());
  for (const Found& found : careful.ranked) CHECK(found.plan.high_end->fits);
  scope.overheads = Overheads::typical;
  const Result bold = search::search(scope);
  CHECK(worth_of(bold) <= worth_of(careful));
  CHECK(std::ranges::any_of(bold.ranked, [](const Found& f) { return !f.plan.high_end->fits; }));
}

TEST_CASE("where only the high end is too much, the first change is to waive it") {
  const models::ModelSpec model = models::catalog_model("gpt2");
  Scope scope = scope_of(model, "4090", 1, 1024);
  for (const char* axis : {"stack", "precision", "optimizer-impl", "recompute", "loss", "attention",
                           "adapters", "micro-batch", "gpus"})
    scope.fixed.insert(axis);
  const Result roomy = search::search(scope);
  REQUIRE(roomy.ranked.size() == 1);
  scope.base.cluster.memory = roomy.ranked.front().plan.device + 1_MiB;
  CHECK(search::search(scope).ranked.empty());
  const Shortage found = shortage(scope, {});
  REQUIRE(found.closest.has_value());
  CHECK(found.closest->plan.fits);
  CHECK(found.missing == found.closest->plan.high_end->device() - *scope.base.cluster.memory);
  REQUIRE(!found.would_fit.empty());
  CHECK(found.would_fit.front().change == "--min-headroom 0");
  CHECK(found.would_fit.front().plan.plan.fits);
}

TEST_CASE("what would fit where nothing does, fits") {
  const models::ModelSpec model = models::catalog_model("llama-3.1-8b");
  Scope scope = scope_of(model, "t4", 2, 4096);
  scope.without["adapters"] = {"lora"};
  REQUIRE(search::search(scope).ranked.empty());
  const Shortage found =
      shortage(scope, {models::find_gpu("t4"), models::find_gpu("h100"), models::find_gpu("h200")});
  REQUIRE(found.closest.has_value());
  CHECK(found.missing > 0_B);
  REQUIRE(found.would_fit.size() >= 2);
  for (const WouldFit& change : found.would_fit) {
    CAPTURE(change.change);
    CHECK(change.plan.plan.fits);
  }
}

TEST_CASE("a search that is stopped gives the best so far") {
  const models::ModelSpec model = models::catalog_model("llama-3.2-1b");
  std::atomic<bool> stop = false;
  int rounds = 0;
  const Control control{&stop, [&](const Progress& progress) {
                          ++rounds;
                          CHECK(progress.evaluated > 0);
                          CHECK(progress.points >= progress.evaluated);
                          stop = true;
                        }};
  const Scope scope = scope_of(model, "4090", 8, 2048);
  const Result result = search::search(scope, control);
  CHECK(result.stopped);
  CHECK(rounds == 1);
  REQUIRE(!result.ranked.empty());
  for (const Found& found : result.ranked) CHECK(found.plan.fits);
  // What was not looked at is not said to be impossible.
  for (const std::vector<std::string>& why : reasons(scope, result.ranked, control))
    CHECK(!has(why, "does not fit"));
}
