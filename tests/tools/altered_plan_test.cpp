// Figures of a plan's document that follow from others: altered, they are refused. Those that stand
// for themselves are listed here.
#include <doctest/doctest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <regex>
#include <set>

#include "reports/document_check.h"
#include "reports/plan_json.h"
#include "tests/scratch_folder.h"
#include "tools/cli/request.h"

using namespace plimsoll;
using namespace plimsoll::tools;
using Json = nlohmann::json;
using plimsoll::test::ScratchFolder;

namespace {

Json planned(const std::vector<std::pair<std::string, std::string>>& given) {
  Options options;
  for (const auto& [name, value] : given) options.add(name, value);
  Sources sources;
  const ScratchFolder folder;
  folder.write("config.json",
               R"({"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "n_layer": 2,
      "n_embd": 16, "n_head": 4, "n_positions": 64, "vocab_size": 32})");
  Request request = request_from(folder.path(), options, sources);
  request.question.detail = planner::Detail::full;
  request.question.remedies = false;
  std::string text;
  reports::JsonWriter json(text, reports::JsonWriter::Style::compact);
  reports::write_plan(json, answer(request), {.version = "1", .commit = "1"});
  return Json::parse(text);
}

bool is_refused(const Json& document) {
  try {
    return !reports::check_plan(document.dump(), "plan.json").empty();
  } catch (const Error& error) {
    CHECK(error.kind() == ErrorKind::bad_input);
    return true;
  }
}

// "timeline.3.by_category.logits_bytes" as "timeline.*.by_category.logits_bytes".
std::string pattern_of(const std::string& pointer) {
  std::string text = std::regex_replace(pointer.substr(1), std::regex("/"), ".");
  return std::regex_replace(text, std::regex("\\.\\d+(?=\\.|$)"), ".*");
}

// Of each pattern the first, one in the middle and the last.
std::vector<std::string> some(const std::vector<std::string>& pointers) {
  return {pointers.front(), pointers[pointers.size() / 2], pointers.back()};
}

std::set<std::string> unnoticed(const Json& document) {
  std::map<std::string, std::vector<std::string>> by_pattern;
  const Json flat = document.flatten();
  for (const auto& [pointer, value] : flat.items())
    if (value.is_number() || value.is_boolean()) by_pattern[pattern_of(pointer)].push_back(pointer);
  std::set<std::string> out;
  for (const auto& [pattern, pointers] : by_pattern)
    for (const std::string& pointer : some(pointers)) {
      Json altered = document;
      Json& value = altered[Json::json_pointer(pointer)];
      if (value.is_boolean())
        value = !value.get<bool>();
      else if (value.is_number_float())
        value = value.get<double>() * 1.01 + 0.001;
      else
        value = value.get<std::int64_t>() + 1;
      if (!is_refused(altered)) out.insert(pattern);
    }
  return out;
}

}  // namespace

// What was asked (another question is another fingerprint), the card, and figures with one source
// of their own. Which tensors live when is checked by what they sum to at every op, so that one
// that only moves between equal ops passes.
TEST_CASE("figures of a plan that follow from others are refused when they are altered") {
  const Json plan = planned(
      {{"gpu", "h100"}, {"stack", "plimsoll"}, {"gpus", "2"}, {"zero", "2"}, {"seq-len", "64"}});
  REQUIRE_FALSE(is_refused(plan));
  std::set<std::string> own;
  for (const std::string& field : unnoticed(plan))
    if (!field.starts_with("environment.") && !field.starts_with("assumptions.") &&
        !field.starts_with("host."))
      own.insert(field);
  CHECK(own == std::set<std::string>{
                   "calibration.deviation_bytes", "communication.bytes_sent_per_gpu_per_step",
                   "communication.collectives.*.array_bytes", "communication.collectives.*.count",
                   "communication.collectives.*.group", "model.active_parameters",
                   "model.parameters", "model.trainable_parameters", "range.high_bytes",
                   "range.low_bytes", "ranks.*.pipeline_stage", "tensors.*.dies_op",
                   "tensors.*.ranks.*", "tensors.*.repeat", "time.communication_seconds",
                   "time.mfu_full_attention"});
}

// 10 bytes more of each without it: what is not known of the one says nothing of the other.
TEST_CASE("each figure of a saving is held against the plan's own") {
  Json plan = planned({{"gpu", "h100"}, {"gpus", "2"}, {"zero", "3"}, {"seq-len", "64"}});
  const auto saving = [&](const char* part, std::int64_t more, std::int64_t said) {
    Json one = {{"used", true}, {"peak_bytes", nullptr}, {"device_bytes", nullptr}};
    one["saves_peak_bytes"] = one["saves_device_bytes"] = nullptr;
    one["option"] = "--zero 3", one["instead"] = "--zero 0";
    one["concession"] = "", one["fits"] = true, one["refusal"] = nullptr;
    one[part] = plan[part].get<std::int64_t>() + more;
    one["saves_" + std::string(part)] = said;
    return one;
  };
  const auto message = [&](const Json& one) {
    Json with = plan;
    with["savings"] = Json::array({one});
    try {
      return reports::check_plan(with.dump(), "plan.json");
    } catch (const Error& error) {
      return error.message();
    }
  };
  for (const char* part : {"peak_bytes", "device_bytes"}) {
    const std::string good = message(saving(part, 10, 10)), bad = message(saving(part, 10, 11));
    CAPTURE(good);
    CAPTURE(bad);
    CHECK(good.find("savings") == std::string::npos);
    CHECK(bad.find("saves_" + std::string(part)) != std::string::npos);
  }
}
