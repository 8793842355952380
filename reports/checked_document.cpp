#include "reports/checked_document.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <set>
#include <vector>

#include "models/base/quantity.h"
#include "models/base/utf8.h"
#include "models/json_reader.h"
#include "reports/fingerprint.h"
#include "reports/schema_check.h"

namespace plimsoll::reports {

namespace {
using nlohmann::json;

constexpr double kRounding = 1e-6;  // of seconds and rates, which other programs may round

// The parser takes the last of two equal keys, and another program may take the first. What was
// read is thrown away at once.
void check_keys(std::string_view text, const std::string& source) {
  std::vector<std::set<std::string>> open;
  const auto event = [&](int, json::parse_event_t what, json& value) {
    if (what == json::parse_event_t::object_start) open.emplace_back();
    if (what == json::parse_event_t::object_end) open.pop_back();
    if (what == json::parse_event_t::key)
      check(open.back().insert(value.get<std::string>()).second, ErrorKind::bad_input, [&] {
        return fmt::format("{}: the key \"{}\" stands twice in one object", source,
                           shortened(value.get<std::string>()));
      });
    return what == json::parse_event_t::object_start || what == json::parse_event_t::array_start ||
           what == json::parse_event_t::key;
  };
  [[maybe_unused]] const json nothing = json::parse(text, event);
}

[[noreturn]] void refuse_value(const std::string& source, const std::string& field,
                               const std::string& value, const std::string& expected,
                               std::string_view why) {
  fail(ErrorKind::bad_input, fmt::format("{}: {} is {}, but {} is expected: {}", source, field,
                                         shortened(value), shortened(expected), why));
}
}  // namespace

CheckedDocument::CheckedDocument(std::string_view text, std::string source, std::string_view kind)
    : source_(std::move(source)), root_(models::parse_json(text, source_)) {
  check_keys(text, source_);
  const std::string id = fmt::format("plimsoll.{}/1", kind);
  const json* schema = root_.is_object() && root_.contains("schema") ? &root_["schema"] : nullptr;
  check(schema != nullptr && *schema == id, ErrorKind::bad_input, [&] {
    const bool named = schema != nullptr && schema->is_string();
    return fmt::format("{}: {}, where {} is needed", source_,
                       named ? "a document of schema " + shortened(schema->get<std::string>())
                             : "a document without a schema",
                       id);
  });
  json rule = models::parse_json(schema_text(kind), "the schema");
  const bool question = kind == "plan" && is_question() && root_.contains("workload");
  json asked = rule["properties"]["workload"];
  asked["definitions"] = rule["definitions"];
  const std::string wrong = question ? complaint(asked, root_["workload"]) : complaint(rule, root_);
  if (!wrong.empty()) refuse((question ? "workload: " : "") + wrong);
  check_fingerprint();
}

bool CheckedDocument::is_question() const {
  constexpr std::array kAnswers{"peak_bytes", "states", "at_peak", "ranks", "device_bytes"};
  return std::ranges::none_of(kAnswers, [&](const char* key) { return root_.contains(key); });
}

void CheckedDocument::expect(const std::string& field, const Json& value, const Json& expected,
                             std::string_view why) const {
  if (value != expected) refuse_value(source_, field, value.dump(), expected.dump(), why);
}

void CheckedDocument::expect_near(const std::string& field, const Json& value, double expected,
                                  std::string_view why) const {
  if (!(std::abs(value.get<double>() - expected) <= kRounding * std::abs(expected)))
    refuse_value(source_, field, value.dump(), fmt::format("{:g}", expected), why);
}

void CheckedDocument::expect_at_most(const std::string& field, const Json& value, const Json& most,
                                     std::string_view why) const {
  if (!value.is_null() && !most.is_null() && value > most)
    refuse_value(source_, field, value.dump(), fmt::format("at most {}", most.dump()), why);
}

void CheckedDocument::refuse(const std::string& what) const {
  fail(ErrorKind::bad_input, source_ + ": " + what);
}

// As fingerprint.h says, of the workload as it stands there.
void CheckedDocument::check_fingerprint() const {
  json workload = root_["workload"];
  const json written = workload["fingerprint"];
  workload.erase("fingerprint");
  workload["model"].erase("name");
  expect("workload.fingerprint", written,
         fingerprint(workload.dump(-1, ' ', false, json::error_handler_t::replace)),
         "the workload's own; one of them was altered");
}

void name_source(const std::string& source, const std::function<void()>& checks) {
  try {
    checks();
  } catch (const Error& error) {
    if (error.message().starts_with(source + ": ")) throw;
    fail(error.kind(), source + ": " + error.message());
  }
}

std::int64_t whole(const json& value) {
  return value.get<std::int64_t>();
}

std::int64_t sum_of_members(const json& parts) {
  std::int64_t total = 0;
  for (const auto& part : parts) total = checked_add(total, whole(part));
  return total;
}

}  // namespace plimsoll::reports
