#include "reports/page/page.h"

#include <fmt/format.h>

#include "models/base/error.h"
#include "models/base/utf8.h"
#include "models/json_reader.h"
#include "reports/page/sections.h"
#include "reports/text.h"

namespace plimsoll::reports {

namespace {

struct Kind {
  std::string_view schema;
  void (*write)(const Json&, Html&);
};
constexpr Kind kKinds[] = {{"plimsoll.plan/1", plan_page},
                           {"plimsoll.recommendation/1", recommendation_page},
                           {"plimsoll.measurement/1", measurement_page},
                           {"plimsoll.comparison/1", comparison_page},
                           {"plimsoll.snapshot_comparison/1", snapshot_page},
                           {"plimsoll.fleet/1", fleet_page},
                           {"plimsoll.models/1", models_page},
                           {"plimsoll.gpus/1", gpus_page}};

const Kind& kind_of(const Json& json, const std::string& source) {
  const std::string schema = json.is_object() ? text(json, "schema") : "";
  for (const Kind& kind : kKinds)
    if (kind.schema == schema) return kind;
  fail(ErrorKind::bad_input,
       fmt::format("{}: {}; a page is made of a plan, a recommendation, a measurement, a "
                   "comparison, a fleet or a catalog (plimsoll.plan/1, …)",
                   source,
                   schema.empty() ? "a document without a schema"
                                  : "a document of schema " + shortened(schema)));
}

}  // namespace

std::string page(std::string_view document, const std::string& source) {
  models::parse_json(document, source);  // refuses what is nested too deeply
  const Json json = Json::parse(document);
  const Kind& kind = kind_of(json, source);
  Html body;
  std::string title = "plimsoll", version, commit;
  try {
    kind.write(json, body);
    if (const auto model = json.find("model"); model != json.end())
      title += ": " + (model->is_string() ? model->get<std::string>() : text(*model, "name"));
    version = text(json.at("tool"), "version");
    commit = text(json.at("tool"), "commit");
  } catch (const Json::exception& error) {
    fail(ErrorKind::bad_input,
         fmt::format("{}: not as {} says: {}", source, kind.schema, error.what()));
  }
  return page_head(title) + body.take() + page_foot(kind.schema, {version, commit});
}

std::string page_head(std::string_view title) {
  return fmt::format(
      "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\n"
      "<meta name=\"viewport\" content=\"width=device-width,initial-scale=1\">\n"
      "<meta name=\"color-scheme\" content=\"light dark\">\n"
      "<title>{}</title>\n<style>\n{}</style></head><body>\n<main>\n",
      xml_escaped(title), page_style());
}

std::string page_foot(std::string_view what, const Tool& tool) {
  return fmt::format(
      "</main>\n<footer>{} · plimsoll {} ({})</footer>\n<script>\n{}</script></body></html>\n",
      xml_escaped(what), xml_escaped(tool.version), xml_escaped(tool.commit), page_script());
}

}  // namespace plimsoll::reports
