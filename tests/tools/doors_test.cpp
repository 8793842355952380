// One question has one answer, whichever door it comes through.
#include <doctest/doctest.h>

#include "planner/plan.h"
#include "planner/search/search.h"
#include "reports/plan_json.h"
#include "tests/tools/drawn_question.h"
#include "tools/cli/plan_source.h"

using namespace plimsoll;
using namespace plimsoll::tools;
using tests::Given;
using tests::text_of;

namespace {

// All that an answer says about memory.
std::string figures(const reports::Plan& plan) {
  std::string text;
  const auto add = [&](std::string_view what, std::int64_t value) {
    text += std::string(what) + " " + std::to_string(value) + "\n";
  };
  add("peak", plan.peak.value());
  add("resident", plan.resident.value());
  add("reserved", plan.reserved.value());
  add("device", plan.device.value());
  add("verdict", static_cast<int>(plan.verdict));
  add("headroom", plan.headroom ? plan.headroom->value() : -1);
  add("parameters", plan.states.parameters.value());
  add("gradients", plan.states.gradients.value());
  add("optimizer", plan.states.optimizer.value());
  for (const Bytes bytes : plan.at_peak) add("at peak", bytes.value());
  if (plan.high_end) {
    add("high end", plan.high_end->device().value());
    add("fits at the high end", plan.high_end->fits ? 1 : 0);
  }
  return text + plan.peak_place.phase + " " + plan.peak_place.where + "\n";
}

// As `batch` and remedies ask, as `fit`, as `fit --detail`, `run` and its prediction.
std::string answered(Request request, planner::Detail detail) {
  request.question.detail = detail;
  request.question.remedies = false;
  return figures(answer(request));
}

std::string read_back(const Request& request) {
  std::string text;
  reports::JsonWriter json(text, reports::JsonWriter::Style::compact);
  reports::write_plan(json, answer(request), {.version = "1", .commit = "1"});
  return answered(request_from_plan(text, "plan.json"), planner::Detail::none);
}

// As `recommend` plans what it lists.
std::string listed(const Request& request) {
  planner::search::Scope scope;
  scope.base = request.question;
  return figures(planner::search::plan_of(
      scope, {.strategy = request.question.strategy, .batch = request.question.batch}));
}

// Whether the question was answered at all.
bool check_doors(Sources& sources, const std::string& model, const Given& given) {
  CAPTURE(model);
  CAPTURE(text_of(given));
  Options options;
  for (const auto& [name, value] : given) options.add(name, value);
  try {
    Request request = request_from(model, options, sources);
    request.question.remedies = false;
    const std::string fit = answered(request, planner::Detail::abridged);
    CHECK(answered(request, planner::Detail::none) == fit);
    CHECK(answered(request, planner::Detail::full) == fit);
    CHECK(read_back(request) == fit);
    CHECK(listed(request) == fit);
  } catch (const Error& refused) {
    CHECK(refused.kind() != ErrorKind::internal);
    return false;
  }
  return true;
}

}  // namespace

TEST_CASE("one question has one answer through every door") {
  Sources sources;
  tests::QuestionDraw draw(7);
  int answers = 0;
  for (int i = 0; i < 150; ++i)
    answers +=
        check_doors(sources, draw.of({"gpt2", "llama-3.2-1b", "qwen3-0.6b"}), draw.question());
  CHECK(answers >= 100);
}

// 32 layers × 8 experts × 3 matrices of 4096 × 14336 are 45.1 of Mixtral's 46.7 billion parameters.
TEST_CASE("the answer says that a mixture's experts are not packed, and what that makes of them") {
  Sources sources;
  const auto advice = [&](const char* model, const char* kbit_prep, const char* release) {
    Options options;
    for (const auto& [name, value] : Given{{"quantize", "nf4"},
                                           {"lora-rank", "16"},
                                           {"kbit-prep", kbit_prep},
                                           {"seq-len", "64"},
                                           {"transformers-version", release}})
      options.add(name, value);
    Request request = request_from(model, options, sources);
    request.question.remedies = false;
    std::string all;
    for (const std::string& line : answer(request).advice) all += line + "\n";
    return all;
  };
  const std::string prepared = advice("mixtral-8x7b", "yes", "5.17.0");
  CHECK(prepared.find("45.1 B of 46.7 B parameters stay as they are loaded") != std::string::npos);
  CHECK(prepared.find("makes 168 GiB of fp32 of them") != std::string::npos);
  CHECK(advice("mixtral-8x7b", "no", "5.17.0").find("fp32 of them") == std::string::npos);
  CHECK(prepared.find("--transformers-version 4.57.6") != std::string::npos);
  CHECK(advice("mixtral-8x7b", "yes", "4.57.6").find("experts") == std::string::npos);
  CHECK(advice("llama-3.2-1b", "yes", "5.17.0").find("experts") == std::string::npos);
}
