// How remedies are looked for, with a planner made of sums: what each change saves is given.
#include "planner/remedies.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <functional>
#include <string>
#include <vector>

#include "models/model_catalog.h"
#include "tests/planner/lines.h"

using namespace plimsoll;
using models::RecomputeKind;
using planner::Question;
using tests::Lines;

namespace {

constexpr std::int64_t kNeed = 100'000;

// What the changes save, in bytes of 100,000.
struct Sums {
  std::int64_t room = 0;
  std::int64_t recompute = 0, micro_batch = 0, each_zero = 0, gpus_8 = 0, each_doubling = 0,
               each_halving = 0, precision = 0;
  std::int64_t surely = 0;  // assumed figures at their high end add as much
  int planned = 0;

  std::int64_t need(const Question& q) const {
    std::int64_t left = kNeed;
    if (q.strategy.recompute.kind == RecomputeKind::full) left -= recompute;
    if (q.batch.micro_batch == 1) left -= micro_batch;
    left -= each_zero * q.strategy.data.zero;
    if (q.strategy.gpus >= 8) left -= gpus_8;
    for (std::int64_t n = 8; n < q.strategy.gpus; n *= 2) left -= each_doubling;
    for (std::int64_t n = 4096; n > q.batch.seq_len; n /= 2) left -= each_halving;
    if (q.strategy.precision == models::Precision::bf16) left -= precision;
    return left;
  }
  reports::Plan plan(const Question& q) {
    ++planned;
    reports::Plan plan;
    plan.device = Bytes(need(q));
    plan.fits = need(q) <= room;
    plan.high_end.emplace();
    plan.high_end->fits = need(q) + surely <= room;
    return plan;
  }
};

// "option saves S fits" of each remedy, of the options that are open.
Lines found(Sums& sums, const Lines& open, const std::function<void(Question&)>& with = nullptr) {
  static const models::ModelSpec model = models::catalog_model("llama-2-7b");
  Question q;
  q.model = &model;
  q.batch = {.seq_len = 4096, .micro_batch = 4};
  for (const char* option : {"kernels", "optimizer-impl", "loss", "recompute", "micro-batch",
                             "zero", "gpus", "seq-len", "lora-rank", "optimizer", "precision"})
    if (std::ranges::find(open, option) == open.end()) q.fixed.push_back(option);
  if (with) with(q);
  reports::Plan plan;
  plan.device = Bytes(kNeed);
  Lines lines;
  const planner::Replanner replanner{
      [&](const Question& asked) { return sums.need(asked) <= sums.room; },
      [&](const Question& asked) { return sums.plan(asked); }};
  for (const reports::Remedy& r : planner::find_remedies(q, plan, replanner)) {
    CHECK(r.device == Bytes(kNeed) - r.saves);
    lines.push_back(r.option + " saves " + std::to_string(r.saves.value()) +
                    (r.fits ? " fits" : ""));
  }
  return lines;
}

const Lines kTwo{"recompute", "micro-batch"};

}  // namespace

TEST_CASE("a change is worth saying from half a per cent on") {
  Sums sums{.room = 1, .recompute = 500, .micro_batch = 499};
  CHECK(found(sums, kTwo) == Lines{"--recompute full saves 500"});
}

TEST_CASE("of more and more GPUs the first number that suffices is shown, else the first of all") {
  Sums sums{.room = 60'000, .gpus_8 = 20'000, .each_doubling = 10'000};
  CHECK(found(sums, {"gpus", "zero"}) == Lines{"--gpus 32 --zero 3 saves 40000 fits"});
  sums.room = 50'001;
  CHECK(found(sums, {"gpus", "zero"}) == Lines{"--gpus 64 --zero 3 saves 50000 fits"});
  sums.room = 49'999;
  CHECK(found(sums, {"gpus", "zero"}) == Lines{"--gpus 8 --zero 3 saves 20000"});
  Sums shorter{.room = 10, .each_halving = 10'000};
  CHECK(found(shorter, {"seq-len"}) == Lines{"--seq-len 2048 saves 10000"});
}

TEST_CASE("of stages that cost nothing the last is shown where none suffices") {
  const auto on_8 = [](Question& q) { q.strategy.gpus = 8; };
  Sums sums{.room = 60'000, .each_zero = 10'000};
  CHECK(found(sums, {"zero"}, on_8) == Lines{"--zero 2 saves 20000", "--zero 3 saves 30000"});
  sums.room = 90'000;
  CHECK(found(sums, {"zero"}, on_8) ==
        Lines{"--zero 1 saves 10000 fits", "--zero 3 saves 30000 fits"});
}

TEST_CASE("what suffices together is joined where nothing alone does, and no further than that") {
  // Each alone saves 20, both 40.
  Sums sums{.room = 60'000, .recompute = 20'000, .micro_batch = 20'000, .precision = 30'000};
  CHECK(found(sums, {"recompute", "micro-batch", "precision"}) ==
        Lines{"--recompute full saves 20000", "--micro-batch 1 --grad-accum 4 saves 20000",
              "--recompute full --micro-batch 1 --grad-accum 4 saves 40000 fits",
              "--precision bf16 saves 30000"});
  // One byte less: all three.
  sums.room = 59'999;
  CHECK(found(sums, {"recompute", "micro-batch", "precision"}) ==
        Lines{"--recompute full saves 20000", "--micro-batch 1 --grad-accum 4 saves 20000",
              "--precision bf16 saves 30000",
              "--recompute full --precision bf16 saves 50000 fits"});
  sums.room = 29'999;
  CHECK(found(sums, {"recompute", "micro-batch", "precision"}).size() == 3);
  // What one change does is not joined again.
  sums.room = 80'000;
  CHECK(found(sums, kTwo) == Lines{"--recompute full saves 20000 fits",
                                   "--micro-batch 1 --grad-accum 4 saves 20000 fits"});
}

TEST_CASE("who cannot pay a price is answered without it") {
  // GPUs with recomputation fit, and so do shorter sequences with it, without GPUs.
  Sums sums{.room = 45'000, .recompute = 20'000, .gpus_8 = 40'000, .each_halving = 12'000};
  CHECK(found(sums, {"recompute", "gpus", "zero", "seq-len"}) ==
        Lines{"--recompute full saves 20000", "--gpus 8 --zero 3 saves 40000",
              "--recompute full --gpus 8 --zero 3 saves 60000 fits", "--seq-len 2048 saves 12000",
              "--recompute full --seq-len 512 saves 56000 fits"});
}

TEST_CASE("a joined remedy that surely fits is taken before one that should") {
  // 8 GPUs with recomputation leave 1,000; another doubling 11,000.
  Sums sums{.room = 41'000,
            .recompute = 20'000,
            .gpus_8 = 40'000,
            .each_doubling = 1'000,
            .surely = 2'500};
  CHECK(found(sums, {"recompute", "gpus", "zero"}) ==
        Lines{"--recompute full saves 20000", "--gpus 8 --zero 3 saves 40000",
              "--recompute full --gpus 32 --zero 3 saves 62000 fits"});
  sums.surely = 50'000;  // none does
  CHECK(found(sums, {"recompute", "gpus", "zero"}).back() ==
        "--recompute full --gpus 8 --zero 3 saves 60000 fits");
}

TEST_CASE("where three changes are not enough, as few as can be left are joined") {
  const Lines open{"recompute", "micro-batch", "gpus", "zero", "seq-len"};
  Sums sums{.room = 20'000,
            .recompute = 20'000,
            .micro_batch = 20'000,
            .gpus_8 = 20'000,
            .each_halving = 20'000};
  // Three changes: the longest sequence with which they do.
  CHECK(found(sums, open).back() ==
        "--recompute full --micro-batch 1 --grad-accum 4 --seq-len 1024 saves 80000 fits");
  // 20 + 20 + 20 and three times 7: all four, of the values of one option the last.
  sums.each_halving = 7'000;
  CHECK(found(sums, open).back() ==
        "--recompute full --micro-batch 1 --grad-accum 4 --gpus 64 --zero 3 --seq-len 512 saves "
        "81000 fits");
}
