#include "reports/plan_table.h"

#include <doctest/doctest.h>

#include <sstream>

#include "tests/reports/made_up_plan.h"

using namespace plimsoll;
using namespace plimsoll::reports;

namespace {
std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  return lines;
}

bool has(const std::string& text, std::string_view part) {
  return text.find(part) != std::string::npos;
}

// Everything too long at once.
Plan long_winded_plan() {
  Plan plan = made_up_plan();
  plan.model_name = std::string(200, 'm');
  plan.gpu->title =
      "NVIDIA RTX PRO 6000 Blackwell Server Edition 96GB with a very long name indeed";
  plan.peak_place.where = "layers." + std::string(100, 'x');
  plan.range = Range{.low = 40_GiB, .high = 81_GiB, .why = std::string(90, 'w')};
  plan.verdict = Verdict::borderline;
  plan.remedies = {{.option = "--recompute full --loss chunked --optimizer-impl for-loop",
                    .saves = 20_GiB,
                    .device = 1023_MiB,
                    .fits = true}};
  plan.assumptions.push_back({.what = std::string(120, 'a'), .value = "1", .basis = "assumed"});
  plan.advice = {"word " + std::string(70, 'v') + " more words to make the line overflow"};
  plan.strategy.lora.emplace();
  return plan;
}
}  // namespace

TEST_CASE("the verdict is the first line") {
  Plan plan = made_up_plan();
  CHECK(lines_of(plan_table(plan, {}))[0] ==
        "FITS: 43.0 GiB needed on each GPU, 78.0 GiB usable: 35.0 GiB to spare");
  plan.verdict = Verdict::does_not_fit;
  plan.device = 90_GiB;
  CHECK(lines_of(plan_table(plan, {}))[0] ==
        "DOES NOT FIT: 90.0 GiB needed on each GPU, 78.0 GiB usable: 12.0 GiB too much");
  plan.strategy.data.kind = models::DataParallelKind::dp;  // the others need less
  CHECK(lines_of(plan_table(plan, {}))[0].starts_with(
      "DOES NOT FIT: 90.0 GiB needed on the first GPU, "));
}

TEST_CASE("without a card the verdict is a need, and a node's memory has one of its own") {
  Plan plan = made_up_plan();
  plan.host_fits = false;
  plan.host_node = 300_GiB;
  plan.host_memory = 256_GiB;
  CHECK(plan_table(plan, {}).starts_with(
      "DOES NOT FIT: 300 GiB needed in the memory of each node, 256 GiB there: "
      "44.0 GiB\n  too much (43.0 GiB needed on each GPU)\n"));
  plan.host_fits = true;
  plan.usable.reset();
  CHECK(lines_of(plan_table(plan, {}))[0] == "NEEDS 43.0 GiB on each GPU");
}

TEST_CASE("a plan that would not fit at its high end says so in its second line") {
  Plan plan = made_up_plan();
  plan.verdict = Verdict::fits;
  plan.fits = true;
  plan.range.reset();
  plan.high_end = HighEnd{.reserved = 80_GiB, .overhead = 1_GiB, .fits = false};
  CHECK(has(plan_table(plan, {}),
            "FITS, BARELY: 43.0 GiB needed on each GPU, 78.0 GiB usable: 35.0 GiB to spare\n"
            "It would not at the high end, 81.0 GiB: one block elsewhere changes what the\n"
            "  allocator reserves. Do not count on it.\n"));
  plan.high_end->fits = true;
  CHECK(lines_of(plan_table(plan, {}))[0].starts_with("FITS: "));
}

TEST_CASE("a plan that runs only by flushing says so in its second line") {
  Plan plan = made_up_plan();
  plan.verdict = Verdict::borderline;
  plan.device = 80_GiB;
  plan.flushing = Flushing{.reserved = 70_GiB,
                           .malloced = 40_GiB,
                           .flushes = 2,
                           .frees = 30,
                           .mallocs = 20,
                           .seconds = 0.86};
  CHECK(has(plan_table(plan, {}),
            "BORDERLINE: 80.0 GiB needed on each GPU, 78.0 GiB usable: 2.00 GiB too much\n"
            "It would run only because the allocator gives cached memory back: 2 times a\n"
            "  step, 40.0 GiB allocated anew, which takes about 0.86 s.\n"));
}

TEST_CASE("every category that holds bytes has a bar, and the peak its place") {
  const std::string text = plan_table(made_up_plan(), {});
  for (const char* name : {"parameters", "gradients", "optimizer", "activations", "logits",
                           "temporaries", "communication"})
    CHECK_MESSAGE(has(text, std::string("  ") + name), name);
  CHECK(!has(text, "  workspace"));  // 0 bytes
  CHECK(has(text, "20.0 GiB   50.0 % █"));  // 20 of 40
  CHECK(has(text, "At the peak (backward, layers.31.mlp, rank 0)"));
}

TEST_CASE("remedies are shown with what they save and leave") {
  Plan plan = made_up_plan();
  plan.verdict = Verdict::does_not_fit;
  plan.remedies = {{.option = "--recompute full",
                    .saves = Bytes(22'870'000'000),
                    .device = 58_GiB,
                    .fits = true}};
  CHECK(has(plan_table(plan, {}), "--recompute full  saves 21.3 GiB, leaves 58.0 GiB  fits"));
}

TEST_CASE("a long remedy stands whole on a line of its own") {
  Plan plan = made_up_plan();
  const std::string option = "--lora-rank 16 --lora-targets all-linear --param-dtype bf16";
  plan.remedies = {{.option = "--zero 3", .saves = 1_GiB, .device = 2_GiB},
                   {.option = option, .saves = 1_GiB, .device = 1_GiB, .fits = true}};
  const std::string text = plan_table(plan, {});
  CHECK(has(text, "\n  --zero 3  saves 1.00 GiB, leaves 2.00 GiB\n"));
  CHECK(has(text, "\n  " + option + "\n            saves 1.00 GiB, leaves 1.00 GiB  fits\n"));
}

TEST_CASE("assumed bytes are shown in units, what has no figure as not known") {
  Plan plan = made_up_plan();
  plan.assumptions = {{.what = "CUDA context, bytes", .value = "723517440", .basis = "assumed"},
                      {.what = "range", .value = "null", .basis = "assumed"},
                      {.what = "seeds", .value = "16", .basis = "derived"}};
  const std::string text = plan_table(plan, {});
  CHECK(has(text, "\n  CUDA context: 690 MiB (assumed)\n  range: not known (assumed)\n"));
  CHECK(has(text, "Assumed or calibrated (2; "));
  CHECK(!has(text, "seeds"));
}

TEST_CASE("no line is wider than the terminal, in blocks, ASCII and colour") {
  for (const bool utf8 : {false, true}) {
    for (const Plan& plan : {made_up_plan(), long_winded_plan()}) {
      for (const std::string& line : lines_of(plan_table(plan, {.utf8 = utf8})))
        CHECK_MESSAGE(width(line) <= 80, line);
    }
  }
}

TEST_CASE("colours change no character of the text") {
  const std::string plain = plan_table(long_winded_plan(), {});
  std::string painted = plan_table(long_winded_plan(), {.colour = true});
  CHECK(has(painted, "\x1b["));
  CHECK(!has(plain, "\x1b["));
  for (std::size_t at; (at = painted.find("\x1b[")) != std::string::npos;)
    painted.erase(at, painted.find('m', at) - at + 1);
  CHECK(painted == plain);
}

TEST_CASE("states alone are shown in the paper's units") {
  Plan plan = made_up_plan();
  plan.states_only = true;
  plan.states = {.parameters = Bytes(15'000'000'000),
                 .gradients = Bytes(15'000'000'000),
                 .optimizer = Bytes(1'406'250'000)};
  const std::string text = plan_table(plan, {});
  CHECK(has(text, "MODEL STATES: 31.41 GB (29.2 GiB) on each GPU"));
  CHECK(!has(text, "At the peak"));
}

TEST_CASE("the table says how long a step takes, what of, and what limits it") {
  Plan plan = made_up_plan();
  const std::string text = plan_table(plan, {});
  CHECK(has(text, "Step: 2 s, 262,144 tokens/s, MFU 40.0 % (45.0 % with full attention)"));
  // 1.5, 0.4 and 0.1 of 2 s; what takes no time is not named.
  CHECK(has(text, "compute 75.0 %, exposed communication 20.0 %, optimizer 5.0 %"));
  CHECK(has(text, "limited by"));
  CHECK_FALSE(has(text, "bubble"));
  plan.verdict = Verdict::does_not_fit;
  CHECK(has(plan_table(plan, {}), "Step, if it fitted: 2 s"));
  plan.time = {};
  CHECK_FALSE(has(plan_table(plan, {}), "Step"));
}

TEST_CASE("the constants of the time are one line of the table") {
  Plan plan = made_up_plan();
  plan.assumptions = {{.what = "time: a", .value = "1", .basis = "calibrated"},
                      {.what = "time: b", .value = "2", .basis = "assumed"},
                      {.what = "time: c", .value = "3", .basis = "derived"}};
  const std::string text = plan_table(plan, {});
  CHECK(has(text, "time: 2 rates and shares (1 calibrated, 1 assumed)"));
  CHECK_FALSE(has(text, "time: a"));
}
