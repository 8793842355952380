// What a data set makes of a plan, in words and in its document.
#include "reports/data_set.h"

#include <doctest/doctest.h>

#include "tests/reports/made_up_plan.h"

using namespace plimsoll;
using namespace plimsoll::reports;
using models::Rows;

namespace {
Plan with_data() {
  Plan plan = made_up_plan();
  DataSet& set = plan.data.emplace();
  models::BatchesOfData& of = set.batches;
  of.samples = 52'002;
  of.cut = 1'234;
  of.items = 50'000;
  of.longest = 4'096;
  of.tokens = 9'876'543;
  of.worst = {Rows::padded, {.seq_len = 4'096, .micro_batch = 2, .grad_accum = 4}};
  of.median = {Rows::flattened,
               {.seq_len = 512, .micro_batch = 2, .grad_accum = 4, .row_tokens = 1'100}};
  of.steps_per_epoch = 781.4;
  of.worst_per_step = 0.004;
  of.first_worst_step = 250.4;
  of.real_share = 0.625;
  of.real_tokens_per_step = 12'000;
  set.median_peak = 20_GiB;
  set.median_device = 21_GiB;
  set.real_tokens_per_second = 98'765.5;
  return plan;
}

// "…: HOW OFTEN, the first expected at …"
std::string often(double chance) {
  Plan plan = with_data();
  plan.data->batches.worst_per_step = chance;
  const std::string line = data_lines(plan)[1];
  const std::size_t begin = line.find(": ") + 2;
  return line.substr(begin, line.find(", the first") - begin);
}
}  // namespace

TEST_CASE("rows that are not full of tokens are said") {
  Plan plan = made_up_plan();
  CHECK(rows_text(plan) == "");
  plan.strategy.rows = Rows::padded;
  CHECK(rows_text(plan) == "rows hold padding: attention reads a mask");
  plan.strategy.rows = Rows::flattened;
  CHECK(rows_text(plan) == "padding-free: one row of 2 samples, 16,384 tokens");  // 2 · 8192
  plan.batch.row_tokens = 1'000;
  plan.batch.row_samples = 7;
  CHECK(rows_text(plan) == "padding-free: one row of 7 samples, 1,000 tokens");
}

TEST_CASE("a data set has three lines: what it is, its worst batch, its median") {
  CHECK(data_lines(made_up_plan()).empty());
  CHECK(data_lines(with_data()) ==
        std::vector<std::string>{
            "Data: 52,002 samples, 9.88 M tokens, the longest 4,096 (1,234 cut); 62 % of positions "
            "are no padding",
            "  planned is the worst batch, 2 x 4,096: 1 step in 250, the first expected at step "
            "250 (781 an epoch)",
            "  the median batch, one row of 1,100 tokens: peak 20.0 GiB, device 21.0 GiB; 98,766 "
            "tokens/s without padding"});
  Plan plan = with_data();
  plan.data->batches.cut = 0;
  plan.data->real_tokens_per_second.reset();
  CHECK(data_lines(plan)[0].find("the longest 4,096; 62 %") != std::string::npos);
  CHECK(data_lines(plan)[2].ends_with("device 21.0 GiB"));
}

// 1 / 0.3 is 3.3, which is a step in three.
TEST_CASE("how often the worst batch comes is told in steps, or in shares of them") {
  CHECK(often(1) == "every step");
  CHECK(often(0.996) == "every step");
  CHECK(often(0.99) == "99 % of steps");
  CHECK(often(0.51) == "51 % of steps");
  CHECK(often(0.5) == "1 step in 2");
  CHECK(often(0.3) == "1 step in 3");
  CHECK(often(1.0 / 999'999) == "1 step in 999,999");
  CHECK(often(1e-9) == "1 step in 1.0e+09");
  CHECK(often(2e-12) == "1 step in 5.0e+11");
  CHECK(often(1e-13) == "fewer steps than 1 in 1e12");
  Plan never = with_data();
  never.data->batches.first_worst_step = 1e15;
  CHECK(data_lines(never)[1].ends_with("the first expected at step beyond any run"));
}

TEST_CASE("a data set's figures stand each under its own key") {
  const auto written = [](const Plan& plan) {
    return pretty([&](JsonWriter& json) {
      json.begin_object();
      write_data(json, plan);
      json.end_object();
    });
  };
  CHECK(written(made_up_plan()) == "{}");
  // 40 and 43 GiB of the worst batch, 20 and 21 of the median.
  CHECK(written(with_data()) == R"--({
  "data": {
    "samples": 52002,
    "cut_samples": 1234,
    "rows": 50000,
    "tokens": 9876543,
    "longest_tokens": 4096,
    "steps_per_epoch": 781.4,
    "worst_batch_per_step": 0.004,
    "first_worst_step": 250.4,
    "real_share": 0.625,
    "real_tokens_per_step": 12000.0,
    "real_tokens_per_second": 98765.5,
    "worst": {"rows": "padded", "batch": {"grad_accum": 4, "micro_batch": 2, "seq_len": 4096}, "peak_bytes": 42949672960, "device_bytes": 46170898432},
    "median": {"rows": "flattened", "batch": {"grad_accum": 4, "micro_batch": 2, "row_tokens": 1100, "seq_len": 512}, "peak_bytes": 21474836480, "device_bytes": 22548578304}
  }
})--");
}
