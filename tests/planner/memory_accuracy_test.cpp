// Planned memory against published memory of real runs.
#include <doctest/doctest.h>

#include <cmath>
#include <fstream>
#include <iterator>
#include <map>
#include <set>
#include <string>

#include "models/gpu_catalog.h"
#include "models/model_catalog.h"
#include "planner/plan.h"
#include "tests/near.h"
#include "tests/planner/published_memory.h"

using namespace plimsoll;

namespace {

// Rows whose peak misses 0.1 %, and by how much at most; reports/memory_accuracy.md says why.
// The list can only shrink as long as the plan stays the run's: two rows inside a layer were nearer
// (1.7 %) when FSDP1 was planned as version 2, whose other errors went the other way.
const std::map<std::string, double> kMissed{
    {"fms-liger-069", 0.0092},  // the peak in a layer: three bytes a hidden value
    {"fms-liger-070", 0.0134},        {"fms-liger-044", 0.0087},
    {"fms-liger-045", 0.0112},        {"fms-liger-046", 0.0132},
    {"fms-liger-076", 0.0105},        {"fms-liger-077", 0.0126},
    {"fms-liger-078", 0.0141},        {"fms-liger-012", 0.0027},  // one byte
    {"fms-liger-013", 0.0040},        {"fms-liger-014", 0.0053},
    {"fms-granite-012", 0.0047},  // Granite's scaled embedding
    {"fms-granite-014", 0.0058},      {"fms-granite-015", 0.0027},
    {"fms-granite-008", 0.0039},      {"fms-granite-010", 0.0047},
    {"fms-granite-001", 0.0016},  // blocks that are not worth splitting
    {"fms-granite-005", 0.0021},      {"fms-granite-007", 0.0018},
    {"fms-granite-003", 0.0011},      {"fms-granite-011", 0.0025},
    {"fms-mistral-lora-1x4", 0.0013},  // SDPA's mask and repeated keys
    {"fms-mistral-lora-2x2", 0.0134}, {"fms-mistral-lora-2x4", 0.0169},
};

}  // namespace

TEST_CASE("published peaks are planned within 0.1 %, less those listed with their bounds") {
  std::size_t judged = 0, missed = 0;
  for (const tests::MemoryRow& row : tests::memory_rows().rows) {
    if (!row.peak) continue;
    CAPTURE(row.id);
    const auto listed = kMissed.find(row.id);
    const double error = std::abs(*row.peak_error());
    CHECK(error <= (listed == kMissed.end() ? 0.001 : listed->second));
    if (listed != kMissed.end()) CHECK(error > 0.001);
    ++judged;
    missed += listed == kMissed.end() ? 0 : 1;
  }
  CHECK(judged == 50);
  CHECK(missed == kMissed.size());
}

TEST_CASE(
    "planned as the newest Transformers, Mistral's LoRA rows would be 4.4 and 6.1 % too low") {
  const models::ModelSpec model = models::catalog_model("mistral-7b-v0.1");
  const std::map<std::string, double> expected{{"fms-mistral-lora-1x4", -0.0437},
                                               {"fms-mistral-lora-1x8", -0.0606}};
  std::size_t judged = 0;
  for (const tests::MemoryRow& row : tests::memory_rows().rows) {
    const auto found = expected.find(row.id);
    if (found == expected.end()) continue;
    planner::Question question;
    question.model = &model;
    question.strategy = row.plan.strategy;
    question.strategy.transformers = models::kTransformers;
    question.batch = row.plan.batch;
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
  for (const tests::MemoryRow& row : tests::memory_rows().rows) {
    if (!row.same_kernels()) continue;
    CAPTURE(row.id);
    CHECK((row.plan.verdict == reports::Verdict::does_not_fit) == row.out_of_memory);
    ++(row.out_of_memory ? failed : ran);
  }
  CHECK(ran == 17);
  CHECK(failed == 8);
}

// Adapters with FOAK's cross-entropy: few large blocks, whose gaps make the figure in runs and
// plans alike.
TEST_CASE("nvidia-smi's published figure is met within 12 %, but where a few blocks' gaps are it") {
  const std::set<std::string> gaps{"fms-liger-008", "fms-liger-009", "fms-liger-040",
                                   "fms-liger-072", "fms-liger-073"};
  for (const tests::MemoryRow& row : tests::memory_rows().rows) {
    if (!row.device) continue;
    CAPTURE(row.id);
    CHECK((std::abs(*row.device_error()) <= 0.12) != gaps.contains(row.id));
  }
}

TEST_CASE("reports/memory_accuracy.md is what the program writes") {
  std::ifstream file(PLIMSOLL_GOLDEN "/../../reports/memory_accuracy.md");
  const std::string page{std::istreambuf_iterator<char>(file), {}};
  const bool current = page == tests::memory_accuracy_page(tests::memory_rows());
  CHECK_MESSAGE(current,
                "build/tests/planner/memory_accuracy > reports/memory_accuracy.md writes it anew");
}
