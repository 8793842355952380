#include "tests/tools/wide_pins.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>

#include "models/base/error.h"
#include "reports/export.h"
#include "reports/json_writer.h"
#include "reports/plan_json.h"
#include "reports/plan_table.h"
#include "tests/fnv.h"
#include "tests/tools/wide_question.h"
#include "tools/cli/doors.h"
#include "tools/cli/explain.h"
#include "tools/cli/request.h"

namespace plimsoll::tests {

namespace {

using Json = nlohmann::json;
using tools::Options;
using tools::Request;

constexpr std::size_t kMostTries = 8;
// What takes other plans takes long, and so does a long document.
constexpr std::uint64_t kWholeStepOnceIn = 8, kRemediesOnceIn = 8, kExplainedOnceIn = 16;

std::string short_hash(std::string_view text) {
  return fmt::format("{:06x}", fnv1a(text) & 0xffffff);
}

// Seconds and rates to seven figures: the last ones are the compiler's.
void write_rounded(const Json& value, std::string& out) {
  if (value.is_number_float()) {
    out += fmt::format("{:.7g},", value.get<double>());
  } else if (value.is_structured()) {
    out += '[';
    for (const auto& [key, member] : value.items()) {
      if (value.is_object()) out += key + ':';
      write_rounded(member, out);
    }
    out += ']';
  } else {
    out += value.dump() + ',';
  }
}

// "batch:1a2b3c cluster:…": the parts of a document, each with its hash.
std::string parts_of(const std::string& document) {
  std::string line;
  const Json parts = Json::parse(document);
  for (const auto& [key, part] : parts.items()) {
    std::string text;
    write_rounded(part, text);
    line += ' ' + key + ':' + short_hash(text);
  }
  return line;
}

std::string exports_of(const std::string& document) {
  std::string all;
  const models::Workload workload = models::read_workload(document, "plan.json");
  for (const auto& write : {reports::export_deepspeed, reports::export_accelerate,
                            reports::export_transformers, reports::export_slurm}) {
    try {
      const reports::Exported exported = write(workload);
      all += exported.text;
      for (const std::string& note : exported.notes) all += note + '\n';
    } catch (const Error& error) {
      if (error.kind() == ErrorKind::internal) throw;
      all += error.message();
    }
  }
  return short_hash(all);
}

Options options_of(const Given& given) {
  Options options;
  for (const auto& [name, value] : given) options.add(name, value);
  return options;
}

std::string answered(std::uint64_t number, const WideQuestion& asked) {
  static tools::Sources sources;
  const Options options = options_of(asked.given);
  Request request = tools::request_from(asked.model, options, sources);
  if (number % kWholeStepOnceIn == 0) request.question.detail = planner::Detail::full;
  request.question.remedies = number % kRemediesOnceIn == 3;
  const reports::Plan plan = tools::answer(request);
  std::string document;
  reports::JsonWriter json(document, reports::JsonWriter::Style::compact);
  reports::write_plan(json, plan, {.version = "1", .commit = "1"});
  std::string line =
      fmt::format("{} {} {} {:.6g}{} table:{}", plan.peak.value(), plan.resident.value(),
                  plan.reserved.value(), plan.time.step_seconds.value_or(0), parts_of(document),
                  short_hash(reports::plan_table(plan, {})));
  if (!plan.states_only) line += " exports:" + exports_of(document);
  if (number % kExplainedOnceIn == 1)
    line += " explained:" + short_hash(tools::explained(asked.model, options, request, "all", {}));
  return line;
}

// The option of the question that a refusal names first; nothing: it names none.
std::optional<std::string> named_in(const std::string& refusal, const Given& given) {
  std::size_t first = std::string::npos;
  std::optional<std::string> out;
  for (const auto& [name, value] : given) {
    const std::size_t at = refusal.find("--" + name);
    if (name == "gpu" || at >= first) continue;
    const std::size_t end = at + 2 + name.size();
    if (end < refusal.size() && (std::isalnum(refusal[end]) != 0 || refusal[end] == '-')) continue;
    first = at;
    out = name;
  }
  return out;
}

}  // namespace

namespace {

// `answer` of the question, asked again without what a refusal names.
template <class Answer>
std::string pin(const std::string& name, WideQuestion asked, Answer answer) {
  std::string refusals, line;
  for (std::size_t tries = 0; tries < kMostTries && line.empty(); ++tries) {
    try {
      line = answer(asked) + ' ';
    } catch (const Error& error) {
      if (error.kind() == ErrorKind::internal) throw;
      refusals += error.message() + '\n';
      const std::optional<std::string> option = named_in(error.message(), asked.given);
      if (!option) break;
      asked.given = with(asked.given, *option, "");
    }
  }
  return fmt::format("{} {}refused:{} | {}{}", name, line, short_hash(refusals), asked.model,
                     text_of(asked.given));
}

// This build's version and commit.
void drop_tool(Json& value) {
  if (value.is_object()) value.erase("tool");
  if (value.is_structured())
    for (Json& member : value) drop_tool(member);
}

// Without what is another each time: how long it took, and how many were evaluated meanwhile.
std::string recommended(const WideQuestion& asked) {
  tools::CommandLine line;
  line.argument = asked.model;
  line.options = options_of(asked.given);
  line.options.add("threads", "1");
  line.options.add("quiet", "");
  Json document = Json::parse(tools::recommend_document(line));
  for (const char* key : {"elapsed_seconds", "evaluated", "search"}) document.erase(key);
  drop_tool(document);
  const Json& ranked = document["ranked"];
  const std::string first = ranked.empty() ? "nothing" : ranked[0]["command"].get<std::string>();
  return fmt::format("{} [{}]", parts_of(document.dump()), first);
}

}  // namespace

std::string wide_pin(std::uint64_t number) {
  return pin(std::to_string(number), wide_question(number),
             [&](const WideQuestion& asked) { return answered(number, asked); });
}

std::string wide_search_pin(std::uint64_t number) {
  return pin('s' + std::to_string(number), wide_search(number), recommended);
}

}  // namespace plimsoll::tests
