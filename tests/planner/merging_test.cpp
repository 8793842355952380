// What merging a trained adapter takes (--phase merge), against PEFT's merge_and_unload on a CUDA
// runtime that computes nothing: tests/golden/load_runs_merge*.json (tools/oracle/load_runs.py).
#include <doctest/doctest.h>

#include <algorithm>
#include <string>

#include "models/model_catalog.h"
#include "models/storages.h"
#include "planner/loading/loading.h"
#include "planner/plan.h"
#include "tests/planner/load_checks.h"

using namespace plimsoll;
using tests::check_runs;
using tests::refusal_of;

// All to the byte, but for what threads have read ahead of a packed checkpoint.
TEST_CASE("merges of adapters into bases of 16 and 32 bits, 8 and 4") {
  check_runs("load_runs_merge.json", 19);
}

// One asks PEFT for adapters in bf16 where it makes them in fp32.
TEST_CASE("merges that were drawn when the plan was done") {
  check_runs("load_runs_merge_draw.json", 15, 1);
}

namespace {

planner::Question merge_of(const models::ModelSpec& model) {
  planner::Question question{.model = &model};
  question.strategy.lora = models::Lora{.rank = 16, .targets = {"down_proj"}};
  question.strategy.param_dtype = DType::bf16;
  question.load = {.asked = true, .device_map = true, .merges = true};
  return question;
}

}  // namespace

TEST_CASE("a merge has the adapter's product twice, in the adapter's dtype, and leaves the base") {
  const models::ModelSpec model = models::catalog_model("llama-2-7b");
  planner::Question question = merge_of(model);
  // 4,096 by 11,008 values. No GPU is said, so there is no workspace of cuBLAS.
  constexpr std::int64_t kValues = 4096LL * 11008;
  const auto above_base = [&] {
    const reports::Load load = planner::load_of(question);
    REQUIRE(load.stages.size() == 3);
    CHECK(load.stages[2].name == "merge_and_unload");
    CHECK(load.stages[2].resident == load.stages[0].resident);
    return (load.stages[2].peak - load.stages[1].resident).value();
  };
  CHECK(above_base() == 2 * 4 * kValues);
  question.strategy.lora->dtype = DType::bf16;
  CHECK(above_base() == 2 * 2 * kValues);
  // Packed, the weight unpacked in bf16, the product, their sum, and a copy of that which is packed
  // to half a byte a value, one scale in fp32 for 64: 14.6 bytes a value; and the table.
  question.strategy.lora->dtype = DType::fp32;
  question.strategy.quantize = {.storage = models::find_packed_storage("nf4"), .kbit_prep = false};
  question.load.device_map = false;
  const std::int64_t expected =
      2 * kValues + 3 * 4 * kValues + kValues / 2 + kValues / 16 + 512 * 3;
  // A block is not split where less than 1 MiB would be left of it.
  const std::int64_t beyond = above_base() - expected;
  CHECK(beyond >= 0);
  CHECK(beyond < 1 << 20);
}

TEST_CASE("an answer about a merge says that nothing of the training is left") {
  const models::ModelSpec model = models::catalog_model("llama-3.2-1b");
  planner::Question question = merge_of(model);
  question.batch.seq_len = 64;
  question.remedies = false;
  const auto says = [&] {
    const auto assumptions = planner::plan(question).assumptions;
    return std::ranges::count(assumptions, "adapter that is merged", &reports::Assumption::what);
  };
  CHECK(says() == 1);
  question.load.merges = false;
  CHECK(says() == 0);
}

TEST_CASE("what cannot be merged is refused by name") {
  const models::ModelSpec model = models::catalog_model("llama-3.2-1b");
  planner::Question question = merge_of(model);
  CHECK(refusal_of(question).empty());
  question.strategy.quantize = {.storage = models::find_packed_storage("awq"), .kbit_prep = false};
  CHECK(refusal_of(question) ==
        "--phase merge with --quantize awq: PEFT merges into weights that bitsandbytes packed, or "
        "that are not packed");
  question.strategy.quantize.reset();
  question.strategy.lora->dora = true;
  CHECK(refusal_of(question).starts_with("--phase merge with --use-dora: "));
  question.strategy.lora.reset();
  CHECK_THROWS_WITH(
      (void)planner::load_of(question),
      doctest::Contains(
          "--phase merge without adapters: --lora-rank says which adapter is merged"));
}
