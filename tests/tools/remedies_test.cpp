// What a plan says would help, put to the command line's own reader.
#include <doctest/doctest.h>

#include <algorithm>
#include <random>
#include <set>
#include <sstream>

#include "planner/techniques.h"
#include "tools/cli/command_line.h"
#include "tools/cli/request.h"

using namespace plimsoll;
using namespace plimsoll::tools;

namespace {

using Given = std::vector<std::pair<std::string, std::string>>;

// The user's options with those of the remedy in place of the same ones; checks that a remedy says
// no option twice.
Given with(Given given, const std::string& remedy) {
  std::istringstream words(remedy);
  std::set<std::string> named;
  for (std::string name, value; words >> name >> value;) {
    REQUIRE(name.starts_with("--"));
    name.erase(0, 2);
    CHECK(named.insert(name).second);
    const auto same = std::ranges::find(given, name, &Given::value_type::first);
    if (same != given.end())
      same->second = value;
    else
      given.emplace_back(name, value);
  }
  return given;
}

reports::Plan plan(const std::string& model, const Given& given, bool remedies) {
  std::vector<std::string> words{"fit", model};
  for (const auto& [name, value] : given) words.push_back("--" + name + "=" + value);
  const CommandLine line = parse_command_line(words, "");
  Sources sources;
  Request request = request_from(line.argument, line.options, sources);
  request.question.remedies = remedies;
  return answer(request);
}

struct Drawing {
  std::mt19937 random;
  template <class T>
  T one_of(std::initializer_list<T> values) {
    return *(values.begin() + random() % values.size());
  }
  void maybe(Given& given, const char* name, std::initializer_list<const char*> values) {
    if (random() % 2 == 0) given.emplace_back(name, one_of(values));
  }

  Given options() {
    Given given{{"gpu", one_of({"rtx-3090", "rtx-3060", "a100-40gb", "h100", "l4"})}};
    const std::string stack = one_of({"pytorch", "pytorch", "plimsoll", "deepspeed"});
    given.emplace_back("stack", stack);
    const bool many = random() % 2 == 0;
    if (many) given.emplace_back("gpus", one_of({"2", "4", "8"}));
    const std::string zero = many ? one_of({"0", "1", "2", "3"}) : "0";
    maybe(given, "zero", {zero.c_str()});
    const bool sharded = given.back().first == "zero" && zero >= "2";
    if (sharded) maybe(given, "shard-group", {"2"});
    if (!sharded && stack == "pytorch") maybe(given, "bucket-cap-mb", {"25", "100"});
    maybe(given, "seq-len", {"1024", "3000", "8192"});
    maybe(given, "micro-batch", {"1", "3", "8"});
    if (random() % 3 == 0)
      given.emplace_back("global-batch", "192");
    else
      maybe(given, "grad-accum", {"1", "2", "5"});
    maybe(given, "precision", {"fp32", "bf16-mixed", "bf16"});
    maybe(given, "recompute", {"none", "selective", "full"});
    maybe(given, "loss", {"full", "fused"});
    if (stack == "pytorch") maybe(given, "attention", {"flash", "eager"});
    if (random() % 4 == 0) given.emplace_back("lora-rank", "8");
    return given;
  }
};

}  // namespace

TEST_CASE("each remedy, given in place of the same options, needs what it promises") {
  int asked = 0, together = 0;
  for (unsigned seed = 0; seed < 120; ++seed) {
    Drawing drawing{std::mt19937(seed)};
    const std::string model =
        drawing.one_of({"llama-3.1-8b", "qwen2.5-1.5b", "gpt2-xl", "llama-3.2-3b"});
    Given given = drawing.options();
    if (model == "gpt2-xl") std::erase_if(given, [](auto& o) { return o.first == "seq-len"; });
    reports::Plan before;
    try {
      before = plan(model, given, true);
    } catch (const Error&) {
      continue;  // refused, which other tests look at
    }
    std::string line = model;
    for (const auto& [name, value] : given) line += " --" + name + " " + value;
    CAPTURE(line);
    bool dear = false;
    for (const reports::Remedy& remedy : before.remedies) {
      CAPTURE(remedy.option);
      const reports::Plan after = plan(model, with(given, remedy.option), false);
      CHECK(after.device == remedy.device);
      CHECK(after.fits == remedy.fits);
      CHECK(before.device - after.device == remedy.saves);
      // The arithmetic is given up last of all.
      const bool numerics = remedy.option.find("--precision bf16") != std::string::npos;
      CHECK((numerics || !dear));
      CHECK(numerics == (remedy.concession.find("fp32 masters") != std::string::npos));
      dear = dear || numerics;
      ++asked;
      together += std::ranges::count(remedy.option, '-') > 4;
    }
  }
  CHECK(asked > 150);
  CHECK(together > 20);
}

// LoRA under ZeRO-3, whose base reentrant checkpoints keep whole on each GPU: the switch that lets
// it go costs nothing.
TEST_CASE("where reentrant checkpoints are what is too much, a plan says so") {
  Given given{{"stack", "deepspeed"}, {"zero", "3"},           {"gpus", "8"},
              {"gpu", "h100"},        {"lora-rank", "16"},     {"recompute", "full"},
              {"seq-len", "1024"},    {"use-reentrant", "yes"}};
  const reports::Plan before = plan("llama-3.1-70b", given, true);
  CHECK_FALSE(before.fits);
  CHECK(before.peak > 131_GiB);  // the base's 16 bits
  const auto found =
      std::ranges::find(before.remedies, "--use-reentrant no", &reports::Remedy::option);
  REQUIRE(found != before.remedies.end());
  CHECK(found->fits);
  CHECK(found->saves > 120_GiB);
  // Where a trainer says so of itself, too: its defaults are no choice of the user's.
  Given of_trainer = given;
  of_trainer.back() = {"trainer", "llamafactory"};
  const reports::Plan trained = plan("llama-3.1-70b", of_trainer, true);
  CHECK_FALSE(trained.fits);
  CHECK(std::ranges::count(trained.remedies, "--use-reentrant no", &reports::Remedy::option) == 1);
  given.back().second = "no";
  for (const reports::Remedy& remedy : plan("llama-3.1-70b", given, true).remedies)
    CHECK(remedy.option.find("use-reentrant") == std::string::npos);
}

// Mixtral's experts are not packed: 84 GiB of them are whole on each GPU before ZeRO-3 cuts them,
// which giving cached memory back does not spare.
TEST_CASE("a base that is whole before it is cut has to have its room") {
  const Given given{
      {"stack", "deepspeed"}, {"zero", "3"},         {"gpus", "4"},
      {"gpu", "a100-80gb"},   {"lora-rank", "8"},    {"lora-targets", "q_proj,v_proj"},
      {"quantize", "int8"},   {"recompute", "full"}, {"seq-len", "512"}};
  const reports::Plan whole = plan("mixtral-8x7b", given, false);
  CHECK(whole.peak < 60_GiB);
  CHECK_FALSE(whole.fits);
  CHECK_FALSE(whole.flushing);
}

// What is planned without a technique is what the command line plans with the other option in its
// place; and with a technique, what it plans with that.
TEST_CASE("each saving, asked for on the command line, needs what it says") {
  int used = 0, unused = 0;
  for (unsigned seed = 0; seed < 60; ++seed) {
    Drawing drawing{std::mt19937(seed)};
    const std::string model = drawing.one_of({"llama-3.2-3b", "qwen2.5-1.5b", "gpt2"});
    Given given = drawing.options();
    std::erase_if(given, [&](auto& o) { return model == "gpt2" && o.first == "seq-len"; });
    if (given.size() > 3 && drawing.random() % 3 == 0) given.emplace_back("optimizer", "adam8bit");
    std::vector<std::string> words{"fit", model};
    for (const auto& [name, value] : given) words.push_back("--" + name + "=" + value);
    std::string line;
    for (const std::string& word : words) line += word + " ";
    CAPTURE(line);
    std::vector<reports::Saving> savings;
    reports::Plan before;
    try {
      const CommandLine command = parse_command_line(words, "");
      Sources sources;
      const Request request = request_from(command.argument, command.options, sources);
      before = planner::plan(request.question);
      savings = planner::savings_of(
          request.question, before, planner::techniques_of(request.question),
          [](const planner::Question& question) { return planner::plan(question); }, [] {});
    } catch (const Error&) {
      continue;  // refused, which other tests look at
    }
    for (const reports::Saving& one : savings) {
      const std::string asked = one.used ? one.instead : one.option;
      // Whose other place no option names, or that changes what was given beside it.
      if (!one.planned || !asked.starts_with("--") || asked.find(',') != std::string::npos)
        continue;
      if (one.used && (asked == "--zero 0" || asked.starts_with("--micro-batch") ||
                       asked == "--precision fp32"))
        continue;
      CAPTURE(one.option);
      CAPTURE(asked);
      const reports::Plan after = plan(model, with(given, asked), false);
      CHECK(after.peak == one.planned->peak);
      CHECK(after.device == one.planned->device);
      CHECK(after.fits == one.planned->fits);
      const Bytes more = after.peak - before.peak;
      CHECK(one.planned->saves_peak == (one.used ? more : Bytes(0) - more));
      ++(one.used ? used : unused);
    }
  }
  CHECK(used > 40);
  CHECK(unused > 80);
}
