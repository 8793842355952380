#include "tools/cli/plan_document_json.h"

#include <fmt/format.h>

#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>

#include "models/base/utf8.h"
#include "models/config_reader.h"
#include "reports/document_check.h"

namespace plimsoll::tools {

namespace {
using Json = nlohmann::ordered_json;
constexpr std::int64_t kMostBytes = 256 << 20;

[[noreturn]] void refuse(std::string message) {
  fail(ErrorKind::bad_input, std::move(message));
}
}  // namespace

std::string read_document(const std::string& path) {
  if (path != "-") return models::read_text_file(path, kMostBytes);
  std::string text;
  char buffer[1 << 16];
  std::size_t got;
  while ((got = std::fread(buffer, 1, sizeof buffer, stdin)) > 0) {
    text.append(buffer, got);
    if (text.size() > static_cast<std::size_t>(kMostBytes))
      refuse("standard input: more than 256 MiB");
  }
  return text;
}

std::string first_plan(const std::string& document, const std::string& source) {
  const std::string name = models::Config::parse(document, source).text("schema", "");
  if (name == "plimsoll.plan/1") return document;
  if (name != "plimsoll.recommendation/1")
    refuse(fmt::format("{}: {}, where a plan (plimsoll.plan/1) or a recommendation is needed",
                       source,
                       name.empty() ? "a document without a schema"
                                    : fmt::format("a document of schema {}", shortened(name))));
  const Json json = Json::parse(document);  // its keys in their order
  const auto ranked = json.find("ranked");
  if (ranked == json.end() || !ranked->is_array() || ranked->empty())
    refuse(fmt::format("{}: a recommendation that ranks no plan (nothing fits)", source));
  const Json& first = ranked->front();
  if (!first.is_object() || !first.contains("plan") || !first["plan"].is_object())
    refuse(fmt::format("{}: the first ranked entry holds no plan", source));
  return first["plan"].dump(2) + "\n";
}

std::string checked_plan(const std::string& document, const std::string& source) {
  std::string plan = first_plan(document, source);
  const std::string contradiction = reports::check_plan(plan, source);
  check(contradiction.empty(), ErrorKind::bad_input, contradiction);
  return plan;
}

}  // namespace plimsoll::tools
