// Planned memory against published memory of real runs.
#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <fstream>
#include <iterator>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "models/gpu_catalog.h"
#include "models/model_catalog.h"
#include "planner/plan.h"
#include "tests/near.h"
#include "tests/planner/published_memory.h"

using namespace plimsoll;

namespace {

// Rows whose peak misses 0.1 %, and by how much at most; reports/memory_accuracy.md says why.
const std::map<std::string, double> kMissed{
    {"fms-granite-001", 0.0017},
    {"fms-granite-003", 0.0011},
    {"fms-granite-009", 0.0039},
    {"fms-granite-011", 0.0021},
    {"fms-granite-005", 0.0021},
    {"fms-granite-007", 0.0018},
    {"fms-granite-013", 0.0046},
    {"fms-granite-015", 0.0030},
    {"fms-liger-052", 0.0030},
    {"fms-liger-053", 0.0018},
    {"fms-liger-084", 0.0032},
    {"fms-liger-085", 0.0019},
    {"fms-gptq-foak-mistral-2x2", 0.0058},
    {"fms-gptq-foak-mistral-2x4", 0.0035},
    {"fms-base-068", 0.0018},
    {"fms-gptq-foak-70b-2x2", 0.0050},
    {"fms-gptq-foak-mixtral-2x2", 0.0033},
    {"fms-gptq-foak-mixtral-2x4", 0.0027},
    {"fms-liger-060", 0.0030},
    {"fms-liger-061", 0.0018},
    {"fms-liger-092", 0.0033},
    {"fms-liger-093", 0.0019},
    {"fms-gptq-foak-45-mistral-2x4", 0.0034},
    {"fms-gptq-foak-45-mistral-2x8", 0.0019},
    {"fms-gptq-foak-liger-45-mistral-2x4", 0.0034},
    {"fms-gptq-foak-liger-45-mistral-2x8", 0.0019},
    {"fms-gptq-foak-45-mistral-4x4", 0.0036},
    {"fms-gptq-foak-45-mistral-4x8", 0.0019},
    {"fms-gptq-foak-liger-45-mistral-4x4", 0.0036},
    {"fms-gptq-foak-liger-45-mistral-4x8", 0.0019},
    {"fms-foak-mixtral-lora-2x4", 0.0015},
    {"fms-bnb-trl-mixtral-lora-1x4", 0.0016},
    {"fms-bnb-trl-mixtral-lora-1x8", 0.0019},
    {"fms-bnb-foak-mistral-lora-2x2", 0.0058},
    {"fms-bnb-foak-mistral-lora-2x4", 0.0035},
    {"fms-bnb-mixtral-lora-2x4", 0.0012},
    {"fms-bnb-foak-mixtral-lora-2x2", 0.0032},
    {"fms-bnb-foak-mixtral-lora-2x4", 0.0031},
    {"fms-bnb-foak-70b-lora-2x2", 0.0049},
    {"fms-bnb-foak-mistral-lora-2x4-45", 0.0035},
    {"fms-bnb-foak-mistral-lora-2x8-45", 0.0020},
    {"fms-bnb-foak-liger-mistral-lora-2x4-45", 0.0035},
    {"fms-bnb-foak-liger-mistral-lora-2x8-45", 0.0020},
    {"fms-bnb-foak-mistral-lora-4x4-45", 0.0036},
    {"fms-bnb-foak-mistral-lora-4x8-45", 0.0020},
    {"fms-bnb-foak-liger-mistral-lora-4x4-45", 0.0036},
    {"fms-bnb-foak-liger-mistral-lora-4x8-45", 0.0020},
    {"litgpt-llama-2-7b-lora", 0.0011},
    {"litgpt-llama-2-7b-lora-4x", 0.0011},
    {"litgpt-llama-2-7b-qlora", 0.0018},
    {"litgpt-llama-3-8b-qlora", 0.0024},
    {"litgpt-mistral-7b-v0.2-qlora", 0.0036},
    {"litgpt-mistral-7b-qlora", 0.0036},
    {"litgpt-llama-3.1-8b-qlora", 0.0023},
    {"litgpt-llama-3.2-1b-qlora", 0.0015},
    {"litgpt-llama-3.2-3b-qlora", 0.0022},
    {"litgpt-tiny-llama-full", 0.0013},
    {"litgpt-tiny-llama-full-4x", 0.0013},
    {"fsdpqlora-02", 0.0075},
    {"fsdpqlora-03", 0.0075},
};

}  // namespace

TEST_CASE("published peaks are planned within 0.1 %, less those listed with their bounds") {
  std::size_t judged = 0, missed = 0;
  for (const tests::MemoryRow& row : tests::memory_rows().answers) {
    if (!row.peak_error()) continue;
    CAPTURE(row.id);
    const auto listed = kMissed.find(row.id);
    const double error = std::abs(*row.peak_error());
    CHECK(error <= (listed == kMissed.end() ? 0.001 : listed->second));
    if (listed != kMissed.end()) CHECK(error > 0.001);
    ++judged;
    missed += listed == kMissed.end() ? 0 : 1;
  }
  CHECK(judged == 260);
  CHECK(missed == kMissed.size());
}

// What reports/memory_accuracy.md says of them.
TEST_CASE("of the 94 peaks that were asked last, 66 are within 0.02 % and 17 miss 0.1 %") {
  const std::array last{"fms-foak", "fms-bnb", "fms-mixtral"};
  int judged = 0, near = 0, far = 0;
  for (const tests::MemoryRow& row : tests::memory_rows().answers) {
    const auto begins = [&](const char* with) { return row.id.starts_with(with); };
    if (!row.peak_error() || std::ranges::none_of(last, begins)) continue;
    const double error = std::abs(*row.peak_error());
    ++judged;
    near += error <= 0.0002 ? 1 : 0;
    far += error > 0.001 ? 1 : 0;
    if (row.id.starts_with("fms-bnb-trl-mistral-lora-1x")) CHECK(error < 1e-6);
  }
  CHECK(judged == 94);
  CHECK(near == 66);
  CHECK(far == 17);
}

TEST_CASE(
    "planned as the newest Transformers, Mistral's LoRA rows would be 4.4 and 6.1 % too low") {
  const models::ModelSpec model = models::catalog_model("mistral-7b-v0.1");
  const std::map<std::string, double> expected{{"fms-mistral-lora-1x4", -0.0443},
                                               {"fms-mistral-lora-1x8", -0.0606}};
  std::size_t judged = 0;
  for (const tests::MemoryRow& row : tests::memory_rows().answers) {
    const auto found = expected.find(row.id);
    if (found == expected.end()) continue;
    planner::Question question;
    question.model = &model;
    question.strategy = row.plan->strategy;
    question.strategy.transformers = models::kTransformers;
    question.strategy.torch = models::kTorch;  // 2.4.1 is too old for it
    question.batch = row.plan->batch;
    question.cluster.gpu = models::find_gpu(row.gpu);
    const Bytes newest = planner::plan(question).peak;
    CHECK(tests::near(newest.real() / row.peak->real() - 1, found->second, 0.01));
    ++judged;
  }
  CHECK(judged == 2);
}

TEST_CASE(
    "what ran with the plan's kernels fits or is borderline, what ran out of memory neither") {
  int ran = 0, failed = 0;
  for (const tests::MemoryRow& row : tests::memory_rows().answers) {
    if (!tests::same_kernels(row) || row.upper_bound) continue;
    CAPTURE(row.id);
    // Llama-2-70B on two GPUs, planned with 1.7 to 2.3 GiB to spare, and too much at the high end.
    const bool narrow = row.id == "fms-gptq-70b-2x4" || row.id == "fms-bnb-70b-lora-2x4" ||
                        row.id == "fms-bnb-trl-70b-lora-2x4";
    const bool too_much = row.plan->verdict == reports::Verdict::does_not_fit;
    CHECK((too_much || (narrow && !row.plan->high_end->fits)) == row.out_of_memory);
    if (narrow) CHECK(!too_much);
    ++(row.out_of_memory ? failed : ran);
  }
  CHECK(ran == 69);
  CHECK(failed == 24);
}

// Few large blocks, whose gaps make the figure in runs and plans alike. fms-liger-064 and
// fms-gptq-mistral-2x4 were within 12 % as torch 2.11, which has not their two slices of the
// logits: torch 2.4.1 itself reserves what is planned for the former's step
// (reports/memory_accuracy.md). GPT-BigCode under FSDP1: its cache is planned as one block behind
// the last layer, where the run holds one of each layer among what comes and goes (one over NF4,
// too). Of GPTQ's the
// plan is too low, for reasons that were not found.
TEST_CASE("nvidia-smi's published figure is met within 12 %, but where a few blocks' gaps are it") {
  const std::set<std::string> gaps{"fms-liger-009",
                                   "fms-liger-064",
                                   "fms-liger-084",
                                   "fms-liger-092",
                                   "fms-liger-093",
                                   "fms-gptq-mistral-2x2",
                                   "fms-gptq-mistral-2x4",
                                   "fms-gptq-foak-mistral-2x2",
                                   "fms-gptq-foak-mistral-2x4",
                                   "fms-gptq-mixtral-2x2",
                                   "fms-gptq-mixtral-2x4",
                                   "fms-gptq-foak-mixtral-2x2",
                                   "fms-gptq-foak-mixtral-2x4",
                                   "fms-gptq-foak-liger-45-mistral-2x4",
                                   "fms-gptq-foak-45-mistral-4x4",
                                   "fms-gptq-foak-liger-45-mistral-4x4",
                                   "fms-gptq-foak-liger-45-mistral-4x8",
                                   "fms-foak-mistral-full-1x8",
                                   "fms-bnb-trl-mistral-lora-2x2",
                                   "fms-bnb-trl-mistral-lora-2x4",
                                   "fms-bnb-trl-mixtral-lora-2x2",
                                   "fms-bnb-trl-mixtral-lora-2x4",
                                   "fms-bnb-mistral-lora-2x2",
                                   "fms-bnb-mistral-lora-2x4",
                                   "fms-bnb-foak-mistral-lora-2x2",
                                   "fms-bnb-foak-mistral-lora-2x4",
                                   "fms-bnb-mixtral-lora-2x2",
                                   "fms-bnb-mixtral-lora-2x4",
                                   "fms-bnb-foak-mixtral-lora-2x2",
                                   "fms-bnb-foak-mixtral-lora-2x4",
                                   "fms-foak-mistral-full-1x8-45",
                                   "fms-bnb-foak-liger-mistral-lora-4x4-45",
                                   "fms-base-001",
                                   "fms-base-003",
                                   "fms-base-005",
                                   "fms-base-007",
                                   "fms-base-068"};
  for (const tests::MemoryRow& row : tests::memory_rows().answers) {
    if (!row.device_error()) continue;
    CAPTURE(row.id);
    CHECK((std::abs(*row.device_error()) <= 0.12) != gaps.contains(row.id));
  }
}

TEST_CASE("as the PyTorch that they ran, rows with adapters and the whole loss are within 10 %") {
  // As torch 2.11 each was 12 to 28 % too low.
  const std::set<std::string> slices{"fms-gptq-foak-45-mistral-1x16",
                                     "fms-gptq-foak-45-mistral-1x4",
                                     "fms-gptq-foak-45-mistral-1x8",
                                     "fms-gptq-foak-mistral-1x4",
                                     "fms-gptq-foak-mistral-1x8",
                                     "fms-liger-008",
                                     "fms-liger-016",
                                     "fms-liger-017",
                                     "fms-liger-024",
                                     "fms-liger-025",
                                     "fms-liger-040",
                                     "fms-liger-048",
                                     "fms-liger-049",
                                     "fms-liger-056",
                                     "fms-liger-057",
                                     "fms-liger-072",
                                     "fms-liger-073",
                                     "fms-liger-080",
                                     "fms-liger-081",
                                     "fms-liger-088",
                                     "fms-liger-089"};
  std::vector<double> errors;
  for (const tests::MemoryRow& row : tests::memory_rows().answers) {
    if (!slices.contains(row.id)) continue;
    CAPTURE(row.id);
    CHECK(row.plan->strategy.torch == models::Release{2, 4, 1});
    errors.push_back(std::abs(*row.device_error()));
    CHECK(errors.back() <= 0.10);
  }
  REQUIRE(errors.size() == 21);
  std::ranges::sort(errors);
  CHECK(errors[10] <= 0.025);
}

// torchtitan's and three of fsdp_qlora's: what was not found stands in reports/memory_accuracy.md.
TEST_CASE("reserved bytes are planned within 3 % of published, less those listed") {
  const std::map<std::string, double> missed{
      {"titan-pr165-fsdp2-ac", 0.060}, {"titan-pr165-fsdp2-sac", 0.043}, {"fsdpqlora-00", 0.10},
      {"fsdpqlora-11", 0.042},         {"fsdpqlora-22", 0.042},          {"fsdpqlora-12", 0.17}};
  int judged = 0;
  for (const tests::MemoryRow& row : tests::memory_rows().answers) {
    if (!row.reserved_error()) continue;
    CAPTURE(row.id);
    const auto listed = missed.find(row.id);
    const double error = std::abs(*row.reserved_error());
    CHECK(error <= (listed == missed.end() ? 0.03 : listed->second));
    if (listed != missed.end()) CHECK(error > 0.03);
    ++judged;
  }
  CHECK(judged == 20);
}

// Full fine-tuning of PEFT's comparison: the loop's cache and lengths that vary are not planned.
TEST_CASE("what a run with shorter sequences takes is not above the plan, but in one row") {
  int bounds = 0;
  for (const tests::MemoryRow& row : tests::memory_rows().answers)
    for (const tools::PublishedFigure& figure : tools::published_figures())
      if (const std::optional<bool> holds = tools::bound_holds(row, figure)) {
        CAPTURE(row.id);
        CHECK(*holds == (row.id != "peft-mm-full-finetuning-lr_0.00001"));
        CHECK(figure.planned(row) / *figure.published(row) > 0.97);
        ++bounds;
      }
  CHECK(bounds == 10);
}

// Packed values, scales, zero points and groups, the rest in 16 bits, adapters with their states;
// whole models, too. Under FSDP gradients of adapters stay, whole with FOAK. PowerLM's two as TRL
// casts them hold 4.6 MB more than was found. santacoder's weights, small ones, lie in blocks that
// earlier ones left: 29 MB, as in runs of the same packages (dry_runs_bitsandbytes_0.43.json).
TEST_CASE("bytes between steps on one GPU are within 0.1 % of published, but two models'") {
  int judged = 0;
  for (const tests::MemoryRow& row : tests::memory_rows().answers) {
    if (!row.resident || !row.plan || row.plan->strategy.gpus > 1) continue;
    CAPTURE(row.id);
    const bool more = row.id.starts_with("fms-bnb-trl-powerlm");
    const bool small = row.plan->strategy.quantize && row.model == "santacoder";
    CHECK(tests::near(row.plan->resident.real(), row.resident->real(),
                      small  ? 0.038
                      : more ? 0.0022
                             : 0.001));
    ++judged;
  }
  CHECK(judged == 65);
}

TEST_CASE("reports/memory_accuracy.md is what the program writes") {
  std::ifstream file(PLIMSOLL_GOLDEN "/../../reports/memory_accuracy.md");
  const std::string page{std::istreambuf_iterator<char>(file), {}};
  const bool current = page == tests::memory_accuracy_page(tests::memory_rows());
  CHECK_MESSAGE(current,
                "build/tests/planner/memory_accuracy > reports/memory_accuracy.md writes it anew");
}
