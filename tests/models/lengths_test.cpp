// Which micro-batches a data set's lengths make.
#include "models/lengths.h"

#include <doctest/doctest.h>

#include <algorithm>

#include "models/base/error.h"
#include "tests/near.h"

using namespace plimsoll;
using models::Collation;
using models::Item;
using models::Lengths;
using models::Packing;
using models::Padding;
using models::Rows;

namespace {
models::BatchesOfData batches(std::vector<std::int64_t> lengths, Collation how, std::int64_t each,
                              std::int64_t ranks = 1) {
  return batches_of(Lengths{std::move(lengths)}, how, {.micro_batch = each}, ranks);
}
// Five samples, cut to 100 tokens; three micro-batches of one on each of two ranks.
models::BatchesOfData batch_of_three() {
  return batches_of(Lengths{{10, 20, 100, 101, 300}}, {.max_length = 100},
                    {.micro_batch = 1, .grad_accum = 3}, 2);
}
}  // namespace

TEST_CASE("lengths are counted where they stand, whatever names them") {
  const Lengths lengths = models::lengths_from_jsonl(
      "{\"input_ids\": [5, 6, 7], \"labels\": [1]}\n\n{\"length\": 12}\r\n{\"num_tokens\": 4}",
      "f");
  CHECK(lengths.tokens == std::vector<std::int64_t>{3, 12, 4});
  const Lengths histogram = models::lengths_from_csv("length,count\n512,2\n64,1\n", "f");
  CHECK(histogram.tokens == std::vector<std::int64_t>{512, 512, 64});
}

TEST_CASE("a text is not counted, nor is anything else guessed") {
  CHECK_THROWS_WITH_AS((void)models::lengths_from_jsonl("{\"length\": 1}\n{\"text\": \"a\"}", "f"),
                       doctest::Contains("f, line 2: has neither"), Error);
  for (const char* line : {"[1]", "{\"length\": 0}", "{\"length\": 1.5}", "{\"length\": \"9\"}",
                           "{\"input_ids\": []}", "{\"length\": -4}", "not JSON"})
    CHECK_THROWS_AS((void)models::lengths_from_jsonl(line, "f"), Error);
  for (const char* text : {"512,2", "length,count", "length,count\n512", "length,count\n512,0",
                           "length,count\n5e2,1", "length,count\n512,200000000", ""})
    CHECK_THROWS_AS((void)models::lengths_from_csv(text, "f"), Error);
}

TEST_CASE("rows are as long as the longest of their micro-batch") {
  // One sample of 100 among four; two of them in a micro-batch: it is in half of the six pairs.
  const auto of = batches({10, 20, 30, 100}, {}, 2);
  CHECK(of.worst.rows == Rows::padded);
  CHECK(of.worst.batch.seq_len == 100);
  CHECK(of.worst.batch.real_tokens == 130);
  CHECK(tests::near(of.worst_per_step, 0.5, 1e-9));
  // It stands at (4 + 1) / 2 = 2.5 of the four samples, two a step.
  CHECK(of.first_worst_step == 2);
  CHECK(of.steps_per_epoch == 2);
  // Pairs reach 20, 30, 30, 100, 100, 100: half of them at most 30.
  CHECK(of.median.batch.seq_len == 30);
  // 2 · (20 + 2 · 30 + 3 · 100) / 6 positions hold 2 · 40 tokens.
  CHECK(tests::near(of.real_share, 80.0 / (2 * 380.0 / 6), 1e-9));
  CHECK(of.real_tokens_per_step == 80);
}

TEST_CASE("where all rows are full nothing is masked, and one that is shorter masks all") {
  CHECK(batches({64, 64, 64}, {}, 2).worst.rows == Rows::full);
  CHECK(batches({64, 50, 7}, {}, 1).worst.rows == Rows::full);
  // Of two rows of 64 neither has padding; of 64 and 50 one has, and that is planned.
  const auto of = batches({64, 64, 64, 50}, {}, 2);
  CHECK(of.worst.rows == Rows::padded);
  CHECK(of.worst.batch.real_tokens == 114);
  CHECK(tests::near(of.worst_per_step, 0.5, 1e-9));  // 3 of 6 pairs have the 50
}

TEST_CASE("a multiple pads even one row") {
  const auto of = batches({61, 64}, {.multiple = 8}, 1);
  CHECK(of.worst.batch.seq_len == 64);
  CHECK(of.worst.rows == Rows::padded);
  CHECK(of.worst.batch.real_tokens == 61);
}

TEST_CASE("longer samples are cut, and padding to the most is the same in every step") {
  const auto of = batches({10, 500, 90}, {.padding = Padding::max, .max_length = 100}, 2);
  CHECK(of.cut == 1);
  CHECK(of.tokens == 200);
  CHECK(of.worst.batch.seq_len == 100);
  CHECK(of.median.batch.seq_len == 100);
  CHECK(tests::near(of.worst_per_step, 1, 1e-9));
  CHECK(tests::near(of.real_share, 200.0 / 300, 1e-9));
}

TEST_CASE("without padding the worst row is that of the longest samples together") {
  const auto of = batches({1, 2, 30, 40, 40}, {.padding = Padding::free}, 2, 3);
  CHECK(of.worst.rows == Rows::flattened);
  CHECK(of.worst.batch.row_tokens == 80);
  CHECK(of.worst.batch.row_samples == 2);
  CHECK(of.worst.batch.tokens() == 80);
  // One of ten pairs; a step has three of them: 1 - 0.9³.
  CHECK(tests::near(of.worst_per_step, 1 - 0.9 * 0.9 * 0.9, 1e-9));
  CHECK(tests::near(of.real_share, 1, 1e-9));
}

TEST_CASE("best fit decreasing, as TRL packs") {
  // trl.pack_dataset's own example: samples of 3, 2, 3 and 1 in rows of 4.
  const auto items = items_of(Lengths{{3, 2, 3, 1}}, {.packing = Packing::bfd, .max_length = 4});
  CHECK(items == std::vector<Item>{{4, 2, 3}, {3, 1, 3}, {2, 1, 2}});
}

TEST_CASE("each thousand samples are packed on their own") {
  // 1000 samples of 3 in rows of 4 wrapped: 3000 / 4 = 750 full rows, and again for one more.
  const Lengths lengths{std::vector<std::int64_t>(1001, 3)};
  const auto wrapped = items_of(lengths, {.packing = Packing::wrapped, .max_length = 4});
  CHECK(wrapped.size() == 751);
  CHECK(wrapped.back().tokens == 3);
  CHECK(items_of(lengths, {.packing = Packing::bfd, .max_length = 6}).size() == 501);
}

TEST_CASE("a short row at the end of a thousand samples is padded with the others") {
  const auto of = batches({6, 3}, {.packing = Packing::wrapped, .max_length = 4}, 2);
  CHECK(of.items == 3);  // 4, 4, 1
  CHECK(of.worst.rows == Rows::padded);
  CHECK(of.worst.batch.real_tokens == 5);
}

TEST_CASE("a data set that fills no micro-batch is refused") {
  CHECK_THROWS_WITH_AS((void)batches({5}, {}, 2), doctest::Contains("do not fill"), Error);
}

TEST_CASE("a wrapped row counts as one sample, as long as it is") {
  const auto items = items_of(Lengths{{6, 3}}, {.packing = Packing::wrapped, .max_length = 4});
  CHECK(items == std::vector<Item>{{4, 1, 4}, {4, 1, 4}, {1, 1, 1}});
}

TEST_CASE("what a data set is, and how often its worst micro-batch comes") {
  const auto of = batch_of_three();
  CHECK(of.samples == 5);
  CHECK(of.longest == 300);  // before it is cut
  CHECK(of.cut == 2);  // 101 and 300, and not 100
  CHECK(of.tokens == 10 + 20 + 100 + 100 + 100);
  CHECK(of.items == 5);
  // Micro-batches of 1, 3 a rank and step on 2 ranks: 6 samples a step, and 5 are there.
  CHECK(of.steps_per_epoch == 1);
  // Three of five are as long as the most: the first of them at (5 + 1) / (3 + 1), in step 1.
  CHECK(of.first_worst_step == 1);
  CHECK(tests::near(of.worst_per_step, 1 - 0.4 * 0.4 * 0.4 * 0.4 * 0.4 * 0.4, 1e-9));
  CHECK(tests::near(of.real_tokens_per_step, 6 * 66.0, 1e-9));
  CHECK(tests::near(of.real_share, 1, 1e-12));
  // Of one in a hundred: at (100 + 1) / (1 + 1) = 50.5, in step 26 of two samples each.
  std::vector<std::int64_t> many(100, 8);
  many[40] = 9;
  CHECK(batches(many, {}, 2).first_worst_step == 26);
  CHECK(batches(many, {}, 2).steps_per_epoch == 50);
  CHECK(batches(many, {}, 2, 0).steps_per_epoch == 50);
  // Without padding a chance decides: one pair of 4950 holds both of two.
  many[41] = 9;
  const auto flat = batches(many, {.padding = Padding::free}, 2);
  CHECK(tests::near(flat.worst_per_step, 1.0 / 4950, 1e-6));
  CHECK(tests::near(flat.first_worst_step, 4950, 1e-3));
}

TEST_CASE("numbers of a histogram are whole, up to what a machine could hold") {
  const auto refused = [](const std::string& text) -> std::string {
    try {
      (void)models::lengths_from_csv(text, "f");
    } catch (const Error& error) {
      return error.message();
    }
    return "accepted";
  };
  // A spreadsheet's mark before the heads.
  CHECK(models::lengths_from_csv("\xef\xbb\xbflength,count\n5,1\n", "f").tokens ==
        std::vector<std::int64_t>{5});
  CHECK(
      refused("length,count\n" + std::string(70, '7') + ",1").find(std::string(57, '7') + "...") !=
      std::string::npos);
  CHECK(refused("length,count\n5,1\nx,1").find("f, line 3") != std::string::npos);
}
