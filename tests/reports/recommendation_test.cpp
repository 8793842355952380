// The recommendation for reading and for programs.
#include "reports/recommendation.h"

#include <doctest/doctest.h>

#include <sstream>

#include "tests/reports/made_up_plan.h"

using namespace plimsoll;
using namespace plimsoll::reports;

namespace {

Recommendation made_up() {
  Recommendation answer;
  answer.model_name = "tiny-llama";
  answer.objective = "throughput";
  answer.evaluated = 12;
  answer.points = 34567;
  answer.elapsed_seconds = 0.25;
  answer.gpus = 16;
  answer.ranked.push_back({.plan = made_up_plan(),
                           .score = 1234.5,
                           .why = {"Plain DDP does not fit: at least 90.0 GiB of 78.0 GiB."},
                           .command = "plimsoll fit tiny-llama --gpus 8 --zero 3",
                           .tokens_per_second = 1234.5});
  models::Strategy hybrid;
  hybrid.gpus = 8;
  hybrid.data.zero = 3;
  hybrid.data.shard_group = 4;
  answer.front.push_back({10_GiB, 11_GiB, 999.6, hybrid, {}, "--zero 3 --shard-group 4"});
  answer.not_considered = {"offload", "tensor parallelism"};
  return answer;
}

bool has(const std::string& text, std::string_view part) {
  return text.find(part) != std::string::npos;
}

// Without the breaks that 80 columns ask for.
std::string unwrapped(std::string text) {
  for (std::size_t at = text.find("\n  "); at != std::string::npos; at = text.find("\n  ", at))
    text.replace(at, 3, " ");
  return text;
}

std::size_t widest(const std::string& text) {
  std::size_t most = 0;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) most = std::max(most, width(line));
  return most;
}

}  // namespace

TEST_CASE("the table names the winner, its command, idle GPUs, reasons and what was left out") {
  const std::string table = recommendation_table(made_up(), {});
  CHECK(table.starts_with("USE pytorch, FSDP2 full shard, bf16-mixed, recompute none"));
  CHECK(has(table, "plimsoll fit tiny-llama --gpus 8 --zero 3"));
  CHECK(has(table, "8 left idle"));  // 16 there, 8 used
  CHECK(has(table, "Plain DDP does not fit"));
  CHECK(has(table, "pytorch FSDP2 /4"));
  CHECK(has(table, "34,567 strategies compared by evaluating 12"));
  CHECK(has(unwrapped(table), "offload, tensor parallelism"));
}

TEST_CASE("what nobody has is not idle, and a runtime that few GPUs have run is called that") {
  Recommendation answer = made_up();
  answer.gpus = 1024;
  answer.gpus_there = false;
  CHECK(!has(recommendation_table(answer, {}), "idle"));
  CHECK(!has(recommendation_table(answer, {}), "one GPU at a time"));
  answer.ranked[0].plan.strategy.stack = models::Stack::plimsoll;
  CHECK(has(recommendation_table(answer, {}), "it has run on one GPU at a time"));
}

TEST_CASE("the table says what the first leaves free at the high end") {
  Recommendation answer = made_up();  // 78 GiB usable
  answer.ranked[0].plan.high_end = HighEnd{.reserved = 74_GiB, .overhead = 3_GiB, .fits = true};
  CHECK(has(recommendation_table(answer, {}), "1 then leaves 1.00 GiB"));
  answer.high_end = false;
  answer.min_headroom = 2_GiB;
  answer.ranked[0].plan.high_end->reserved = 76_GiB;
  const std::string bold = recommendation_table(answer, {});
  CHECK(has(bold, "2.00 GiB kept free"));
  CHECK(has(bold, "1.00 GiB too little"));
}

TEST_CASE("least memory is told by the peak, all else by what the device shows") {
  Recommendation answer = made_up();
  CHECK(has(recommendation_table(answer, {}), "   device  tokens/s"));
  answer.objective = "memory";
  CHECK(has(recommendation_table(answer, {}), "     peak  tokens/s"));
}

// 6 · 10^6 parameters · 2·10^12 tokens; 2·10^12 / 1234.5 s · 8 GPUs / 86 400 = 150,008 GPU-days.
TEST_CASE("a budget says 6 N D and GPU-days, whole ones where they are many") {
  Recommendation answer = made_up();
  answer.budget_tokens = 2e12;
  answer.ranked[0].gpu_days = 2e12 / 1234.5 * 8 / 86400;
  const std::string table = recommendation_table(answer, {});
  CHECK(has(table, "6 N D = 1.2e+19 FLOP"));
  CHECK(has(table, "150,008 GPU-days, 18,751 days on 8 GPUs"));
}

TEST_CASE("long names and reasons never pass the 80th column") {
  Recommendation answer = made_up();
  answer.model_name = std::string(200, 'm');
  answer.ranked[0].plan.gpu->title = std::string(120, 'g');
  answer.ranked[0].why.push_back(std::string(150, 'w') + " and more words to fill the line");
  answer.ranked[0].command += " --freeze " + std::string(150, 'f');
  answer.notes = {std::string(130, 'n')};
  CHECK(widest(recommendation_table(answer, {})) <= 80);
  answer.nothing_fits = NothingFits{.closest = answer.ranked[0], .shortfall = 3_GiB};
  answer.nothing_fits->would_fit = {{"--gpus 16", answer.ranked[0].command, 20_GiB}};
  answer.ranked.clear();
  CHECK(widest(recommendation_table(answer, {})) <= 80);
}

TEST_CASE("where nothing fits the table says by how much, and what would") {
  Recommendation answer = made_up();
  answer.nothing_fits = NothingFits{};
  CHECK(recommendation_table(answer, {})
            .starts_with("NOTHING CAN BE PLANNED for this model and these options\n"));
  answer.nothing_fits = NothingFits{.closest = answer.ranked[0], .shortfall = 3_GiB};
  CHECK(has(recommendation_table(answer, {}),
            "No single change of tokens, GPUs or card makes it fit.\n"));
  answer.nothing_fits->would_fit = {{"--gpus 16", "plimsoll fit tiny-llama --gpus 16", 20_GiB}};
  answer.ranked.clear();
  const std::string table = recommendation_table(answer, {});
  CHECK(unwrapped(table).starts_with("NOTHING FITS: the closest plan needs 43.0 GiB on each GPU"));
  CHECK(has(table, "plimsoll fit tiny-llama --gpus 16"));
}

TEST_CASE("the document has null for what is not known, and no answer is an empty list") {
  Recommendation answer = made_up();
  answer.ranked[0].tokens_per_second.reset();
  answer.ranked[0].score.reset();
  std::string text;
  JsonWriter json(text, JsonWriter::Style::compact);
  write_recommendation(json, answer, {"1", "c"});
  CHECK(has(text, R"("schema":"plimsoll.recommendation/1")"));
  CHECK(has(text, R"("score":null)"));
  CHECK(has(text, R"("tokens_per_second":null,"gpu_days":null)"));
  CHECK(has(text, R"("nothing_fits":null)"));
}
