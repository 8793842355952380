// What the pages have in common.
#include "reports/page/sections.h"

#include <fmt/format.h>

#include <cmath>

#include "models/base/error.h"
#include "reports/json_writer.h"
#include "reports/text.h"

namespace plimsoll::reports {

std::optional<double> number(const Json& object, const char* key) {
  const auto found = object.find(key);
  if (found == object.end() || found->is_null()) return std::nullopt;
  return found->get<double>();
}

std::optional<Bytes> bytes(const Json& object, const char* key) {
  const auto found = object.find(key);
  if (found == object.end() || found->is_null()) return std::nullopt;
  return Bytes(found->get<std::int64_t>());
}

std::string text(const Json& object, const char* key) {
  const auto found = object.find(key);
  return found == object.end() || found->is_null() ? "" : found->get<std::string>();
}

double number_of(const Json& object, const char* key) {
  return object.at(key).get<double>();
}

Bytes bytes_of(const Json& object, const char* key) {
  return Bytes(object.at(key).get<std::int64_t>());
}

std::string percent(double share) {
  return fmt::format("{:.1f} %", 100 * share);
}

std::string whole_number(double value) {
  constexpr double kMost = 9e18;
  if (!(std::abs(value) < kMost)) return fmt::format("{:.3g}", value);
  return grouped(Count(std::llround(value)));
}

ByCategory by_category(const Json& object) {
  ByCategory out{};
  for (std::size_t i = 0; i < out.size(); ++i) {
    const std::string key =
        std::string(models::name_of(static_cast<models::Category>(i))) + "_bytes";
    out[i] = bytes(object, key.c_str()).value_or(Bytes(0));
  }
  return out;
}

// Of a picture 840 pixels wide nobody sees more: of each stretch of a longer timeline its highest.
std::vector<TimelinePoint> timeline_points(const Json& timeline) {
  const auto high_of = [](const Json& point) {
    return bytes(point, "high_water_bytes").value_or(Bytes(0));
  };
  std::vector<TimelinePoint> points;
  const std::size_t stretch = (timeline.size() + kMostPoints - 1) / kMostPoints;
  for (std::size_t i = 0; i < timeline.size(); i += stretch) {
    std::size_t highest = i;
    for (std::size_t j = i; j < std::min(i + stretch, timeline.size()); ++j)
      if (high_of(timeline[j]) > high_of(timeline[highest])) highest = j;
    const Json& point = timeline[highest];
    points.push_back({.op = text(point, "op"),
                      .phase = text(point, "phase"),
                      .high_water = high_of(point),
                      .by_category = by_category(point.at("by_category"))});
  }
  return points;
}

// The script's data is JSON inside HTML: "<" is written as \u003c, so that nothing ends it early.
void timeline_figure(const Timeline& timeline, Html& html) {
  std::string names, points;
  for (std::size_t i = 0; i < models::kCategories; ++i)
    names += (i == 0 ? "" : ",") + std::string(models::name_of(static_cast<models::Category>(i)));
  for (const TimelinePoint& point : timeline.points) {
    points += (points.empty() ? "[" : ",\n[") + reports::quoted(point.phase) + "," +
              reports::quoted(point.op);
    for (const Bytes part : point.by_category) points += "," + std::to_string(part.value());
    points += "]";
  }
  std::string safe;
  for (const char c : points) safe += c == '<' ? "\\u003c" : std::string(1, c);
  html.raw(fmt::format(
      "<figure tabindex=\"0\" data-points=\"{} {} {} {}\" data-names=\"{}\">\n"
      "<div class=\"picture\">{}</div>\n"
      "<p class=\"at\" aria-live=\"polite\">Point at the picture, or use the arrow keys, to read "
      "each moment.</p>\n<script type=\"application/json\">[{}]</script></figure>\n",
      kPlotArea.left, kPlotArea.width, kPlotArea.top, kPlotArea.height, names,
      timeline_svg(timeline), safe));
}

}  // namespace plimsoll::reports
