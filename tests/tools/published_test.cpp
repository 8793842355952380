// Published rows: what is asked, what is counted, how far off it is.
#include <doctest/doctest.h>

#include "models/base/error.h"
#include "models/gpu_catalog.h"
#include "models/model_catalog.h"
#include "planner/plan.h"
#include "tests/near.h"
#include "tools/published/report.h"

using namespace plimsoll;
using namespace plimsoll::tools;

namespace {

// The first runs with half of GPT-2's peak published, the second is compiled, the third stands for
// another program, the fourth failed on a card that it fits on.
constexpr const char* kDocument = R"({
 "sources": ["a/b, page 1", "c/d @1"],
 "stand_ins": {"1": "its own GPT-2"},
 "left_out": {"fp8": 3, "not stated": 2},
 "rows": [
  {"id": "one", "source": 0, "model": "gpt2", "gpu": "a100-80gb", "gpus": 1, "zero": 0,
   "precision": "bf16-mixed", "recompute": "full", "reentrant": true, "seq_len": 512,
   "micro_batch": 2, "grad_accum": 1, "peak_bytes": 1073741824, "in_sample": true},
  {"id": "two", "source": 0, "model": "gpt2", "gpu": "a100-80gb", "compile": true,
   "tokens_per_second_per_gpu": 1000},
  {"id": "three", "source": 1, "model": "gpt2", "gpu": "a100-80gb", "reserved_bytes": 2000000000,
   "tokens_per_second_per_gpu": 1000},
  {"id": "four", "source": 0, "model": "gpt2", "gpu": "a100-80gb", "out_of_memory": true}
 ]})";

std::vector<PublishedAnswers> asked() {
  return {published_answers(read_published(kDocument, "made up"))};
}

Error refusal_of(const std::string& row) {
  try {
    (void)read_published(R"({"sources": ["a"], "left_out": {}, "rows": [)" + row + "]}", "it");
  } catch (const Error& error) {
    return error;
  }
  throw std::logic_error("taken: " + row);
}
}  // namespace

TEST_CASE("a row is a question as a user types it: what is usual is not said") {
  const PublishedDocument document = read_published(kDocument, "made up");
  CHECK(document.rows[0].command() ==
        "plimsoll fit gpt2 --gpu a100-80gb --recompute full --use-reentrant yes --seq-len 512 "
        "--micro-batch 2");
  CHECK(document.rows[1].command() == "plimsoll fit gpt2 --gpu a100-80gb --compile model");
  CHECK(document.figures() == 9);
}

TEST_CASE("errors are planned against published, of rows that are answered") {
  const auto all = asked();
  const auto& rows = all[0].answers;
  const models::ModelSpec model = models::catalog_model("gpt2");
  planner::Question question;
  question.model = &model;
  question.cluster.gpu = models::find_gpu("a100-80gb");
  question.strategy.recompute.kind = models::RecomputeKind::full;
  question.strategy.use_reentrant = true;
  question.batch = {512, 2, 1};
  const double peak = planner::plan(question).peak.real();
  CHECK(tests::near(rows[0].peak_error().value(), peak / (1 << 30) - 1, 1e-12));
  CHECK(!rows[0].speed_error());
  CHECK(!rows[1].plan);
  CHECK(!rows[1].speed_error());
  CHECK(tests::near(rows[2].reserved_error().value(), rows[2].plan->reserved.real() / 2e9 - 1,
                    1e-12));
  CHECK(tests::near(rows[2].speed_error().value(),
                    *rows[2].plan->time.tokens_per_second_per_gpu / 1000 - 1, 1e-12));
}

TEST_CASE("answered, by stand-in and refused are all that is published") {
  const PublishedCounts counts = counts_of(asked());
  CHECK(counts.published == 9);
  CHECK(counts.answered == 2);
  CHECK(counts.by_stand_in == 1);
  CHECK(counts.refused ==
        std::map<std::string, std::size_t>{
            {"--compile model: a model compiled as one graph is not modelled yet (block is)", 1},
            {"fp8", 3},
            {"not stated", 2}});
  CHECK(counts.ran == 1);
  CHECK(counts.ran_planned_not_to_fit == 0);
  CHECK(counts.failed == 1);
  CHECK(counts.failed_planned_to_fit == 1);
  CHECK(counts.failed_planned_barely == 0);
}

TEST_CASE("a run whose sequences are no longer than is asked is a bound, and no error") {
  const auto one = [](const char* reserved) {
    const std::string rows =
        R"({"id": "a", "source": 0, "model": "gpt2", "gpu": "a100-80gb", "seq_len": 512,
            "upper_bound": true, "peak_bytes": 1048576, "reserved_bytes": )" +
        std::string(reserved) + "}";
    return std::vector<PublishedAnswers>{published_answers(
        read_published(R"({"sources": ["a"], "left_out": {}, "rows": [)" + rows + "]}", "it"))};
  };
  const auto holds = one("1048576"), fails = one("800000000000");
  const PublishedFigure& reserved = published_figures()[1];
  CHECK(!holds[0].answers[0].reserved_error());
  CHECK(bound_holds(holds[0].answers[0], reserved) == true);
  CHECK(bound_holds(fails[0].answers[0], reserved) == false);
  CHECK(!bound_holds(holds[0].answers[0], published_figures()[2]));
  const PublishedCounts counts = counts_of(fails);
  CHECK(counts.answered == 1);
  CHECK(counts.ran == 0);
  CHECK(counts.bounds == 2);
  CHECK(counts.bounds_hold == 1);
  CHECK(goal_lines(fails, {}).find(
            "* bounds, of runs whose sequences are no longer than is asked: 2 figures, 1 not above "
            "the plan\n") != std::string::npos);
}

TEST_CASE("rows that constants were fitted on are apart") {
  const auto all = asked();
  const PublishedFigure& peak = published_figures()[0];
  CHECK(summary_of(all, peak, true).rows == 1);
  CHECK(summary_of(all, peak, false).rows == 0);
  const std::string table = published_table(all, {});
  CHECK(table.starts_with("ANSWERED: 2 of 9 published figures as stated, 22 %; 1 more by "));
  CHECK(table.find("peak allocated, in sample") != std::string::npos);
  CHECK(goal_lines(all, {"peak_bytes"}) ==
        "* answered as stated: 2 of 9 published figures, 22 %; by a stand-in for their program: 1, "
        "11 %\n"
        "* peak allocated: no row that is answered states it\n"
        "* ran out of memory: 1 rows, 1 of them planned to fit, barely 0; ran: 1 rows, 0 of them "
        "planned not to\n");
}

// Two runs: of the first twice what is planned was published; the second, on a T4, is planned not
// to fit. One source each, of which the second is in the sample.
TEST_CASE("a table and the lines of the goals say the figures that they were given") {
  const auto document = [](std::int64_t reserved, const char* in_sample) {
    return std::vector<PublishedAnswers>{published_answers(read_published(
        R"({"sources": ["first/page", "second/page"], "left_out": {}, "rows": [
          {"id": "a", "source": 0, "model": "gpt2", "gpu": "a100-80gb", "seq_len": 512,
           "reserved_bytes": )" +
            std::to_string(reserved) +
            R"(}, {"id": "b", "source": 1, "model": "llama-3.1-8b", "gpu": "t4", "seq_len": 512,
           "peak_bytes": 1073741824, "in_sample": )" +
            in_sample + "}]}",
        "it"))};
  };
  const std::int64_t planned = document(1, "false")[0].answers[0].plan->reserved.value();
  const auto all = document(2 * planned, "true");
  const PublishedCounts counts = counts_of(all);
  CHECK(counts.ran == 2);
  CHECK(counts.ran_planned_not_to_fit == 1);
  CHECK(all[0].answers[0].plan->remedies.empty());  // nobody asks for them here
  CHECK(goal_lines(all, {"reserved_bytes"}) ==
        "* answered as stated: 2 of 2 published figures, 100 %\n"
        "* reserved: median error 50 %, 95th percentile 50 % (1 rows)\n");
  const std::string table = published_table(all, {});
  for (const char* part :
       {"  reserved  ", "  peak allocated, in sample  ", "  it 1, reserved  ",
        "  it 2, peak allocated, in sample  ", "  it 1: first", "  it 2: second"})
    CHECK_MESSAGE(table.find(part) != std::string::npos, part << " in\n" << table);
  CHECK(table.find("Bounds") == std::string::npos);
}

TEST_CASE("a bound holds where the plan is as large") {
  const auto one = [](std::int64_t reserved) {
    return published_answers(read_published(
        R"({"sources": ["a"], "left_out": {}, "rows": [{"id": "a", "source": 0, "model": "gpt2",
            "gpu": "a100-80gb", "seq_len": 512, "upper_bound": true, "reserved_bytes": )" +
            std::to_string(reserved) + "}]}",
        "it"));
  };
  const std::int64_t planned = one(1).answers[0].plan->reserved.value();
  const PublishedFigure& reserved = published_figures()[1];
  CHECK(bound_holds(one(planned).answers[0], reserved) == true);
  CHECK(bound_holds(one(planned + 1).answers[0], reserved) == false);
  // Lines are broken at 80 columns.
  CHECK(published_table({one(planned)}, {}).find("Bounds, of runs whose") != std::string::npos);
}

TEST_CASE("95 of 100 errors are no larger than the 95th percentile") {
  std::vector<double> errors;
  for (int i = 20; i >= 1; --i) errors.push_back(i % 2 == 0 ? i : -i);
  const ErrorSummary of_20 = summary_of(errors);
  CHECK(of_20.rows == 20);
  CHECK(of_20.median == 10.5);
  CHECK(of_20.p95 == 19);
  CHECK(of_20.largest == 20);
  const auto p95_of = [](int n) {
    std::vector<double> all;
    for (int i = 1; i <= n; ++i) all.push_back(i);
    return summary_of(all).p95;
  };
  CHECK(p95_of(19) == 19);  // 18 are 94.7 of 100
  CHECK(p95_of(21) == 20);  // 20 are 95.2 of 100
  CHECK(p95_of(100) == 95);
  CHECK(summary_of({-0.25}).p95 == 0.25);
  CHECK(summary_of({1, 2, 3}).median == 2);
  CHECK(summary_of({}).rows == 0);
}

TEST_CASE("what is neither a figure nor an option is refused by name") {
  CHECK(refusal_of(R"({"id": "a", "source": 0, "model": "gpt2", "gpu": "h100", "zer0": 1})")
            .message() == "it: \"zer0\": neither a figure nor an option of fit");
  CHECK(refusal_of(R"({"id": "a", "source": 1, "model": "gpt2", "gpu": "h100"})").message() ==
        "it: a: \"source\": there is none");
  CHECK(refusal_of(R"({"id": "a"})").kind() == ErrorKind::bad_input);
}
