// Measurements, and comparisons of them with their prediction.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "reports/page/sections.h"
#include "reports/text.h"

namespace plimsoll::reports {

namespace {

Cell maybe_bytes(std::optional<Bytes> value) {
  return value ? bytes_cell(*value) : number_cell("–");
}

std::vector<Cell> compared(Cell name, const Json& row) {
  return {std::move(name), maybe_bytes(bytes(row, "predicted_bytes")),
          maybe_bytes(bytes(row, "measured_bytes")), maybe_bytes(bytes(row, "difference_bytes"))};
}

void rank_table(const Json& rank, Html& html) {
  Table table(fmt::format("Rank {}", whole_number(number_of(rank, "rank"))),
              {text_cell(""), number_cell("predicted"), number_cell("measured"),
               number_cell("difference")});
  for (const Json& row : rank.at("categories"))
    table.row(compared(text_cell(text(row, "category")), row));
  for (const char* key : {"peak", "resident", "reserved", "device"})
    if (rank.contains(key)) table.row(compared(text_cell(key), rank.at(key)), true);
  html.raw(table.take());
}

void differences(const Json& comparison, Html& html) {
  const Json& found = comparison.at("differences");
  if (found.empty()) return;
  html.heading(2, "Differences");
  constexpr std::size_t most = 50;
  Table table(fmt::format("{} found", whole_number(number_of(comparison, "differences_found"))),
              {text_cell("kind"), text_cell("rank"), text_cell("where"), text_cell("tensor"),
               number_cell("predicted"), number_cell("measured")});
  for (std::size_t i = 0; i < std::min(most, found.size()); ++i) {
    const Json& d = found[i];
    const auto rank = number(d, "rank");
    table.row({text_cell(text(d, "kind")), text_cell(rank ? whole_number(*rank) : ""),
               text_cell(text(d, "where")), text_cell(text(d, "tensor")),
               maybe_bytes(bytes(d, "predicted_bytes")), maybe_bytes(bytes(d, "measured_bytes"))});
  }
  html.raw(table.take());
}

void one_comparison(const Json& comparison, Html& html) {
  const bool agrees = comparison.at("agrees").get<bool>();
  html.paragraph(
      agrees ? "Prediction and measurement agree" : "Prediction and measurement do not agree",
      agrees ? "verdict agrees" : "verdict not");
  Table levels("Levels", {text_cell("level"), text_cell("verdict"), text_cell("")});
  for (const auto& [name, level] : comparison.at("levels").items())
    levels.row(
        {text_cell(name), text_cell(text(level, "verdict")), text_cell(text(level, "text"))});
  html.raw(levels.take());
  if (const Json& ranks = comparison.at("ranks"); !ranks.empty()) rank_table(ranks.front(), html);
  differences(comparison, html);
  if (const auto notes = comparison.find("notes"); notes != comparison.end())
    html.list(notes->get<std::vector<std::string>>());
}

// Loss (or any other figure) over the steps, as a line.
void line_picture(const Json& steps, const char* key, const char* title, Html& html) {
  std::vector<double> values;
  for (const Json& step : steps)
    if (const auto value = number(step, key); value && std::isfinite(*value))
      values.push_back(*value);
  if (values.size() < 2) return;
  const auto [low, high] = std::ranges::minmax(values);
  const double span = high > low ? high - low : 1;
  std::string path;
  for (std::size_t i = 0; i < values.size(); ++i)
    path += fmt::format("{}{:.1f} {:.1f}", i == 0 ? "M" : "L",
                        80 + 840 * static_cast<double>(i) / static_cast<double>(values.size() - 1),
                        180 - 150 * (values[i] - low) / span);
  html.heading(3, title);
  html.raw(fmt::format(
      "<div class=\"picture\"><svg viewBox=\"0 0 960 210\" role=\"img\" aria-label=\"{0}: {1:.4g} "
      "at first, {2:.4g} at last\"><style>svg text{{font:13px system-ui,sans-serif;"
      "fill:var(--fg)}}</style><path d=\"{3}\" fill=\"none\" stroke=\"var(--bar)\" "
      "stroke-width=\"2\"/><text x=\"72\" y=\"34\" text-anchor=\"end\">{4:.4g}</text>"
      "<text x=\"72\" y=\"184\" text-anchor=\"end\">{5:.4g}</text></svg></div>\n",
      title, values.front(), values.back(), path, high, low));
}

}  // namespace

void comparison_page(const Json& comparison, Html& html) {
  html.heading(1, "Predicted against measured");
  const auto several = comparison.find("comparisons");
  if (several == comparison.end()) return one_comparison(comparison, html);
  for (const Json& one : *several) {
    html.heading(2, text(one, "measurement"));
    one_comparison(one, html);
  }
}

void measurement_page(const Json& measurement, Html& html) {
  const Json& workload = measurement.at("workload");
  html.heading(1, "Measured: " + text(workload.at("model"), "name"));
  const std::string outcome = text(measurement, "outcome");
  html.paragraph("Outcome: " + outcome, outcome == "completed" ? "verdict" : "verdict not");
  if (const std::string error = text(measurement, "error"); !error.empty()) html.code(error);
  const Json& environment = measurement.at("environment");  // null: not noted
  html.paragraph(text(measurement, "measured_at") +
                 (environment.is_null() ? "" : ", " + text(environment.at("device"), "name")));
  Table table("Ranks", {text_cell("rank"), number_cell("peak"), number_cell("between steps"),
                        number_cell("reserved"), number_cell("device")});
  for (const Json& rank : measurement.at("ranks"))
    table.row({text_cell(whole_number(number_of(rank, "rank"))),
               maybe_bytes(bytes(rank, "peak_bytes")), maybe_bytes(bytes(rank, "resident_bytes")),
               maybe_bytes(bytes(rank, "reserved_bytes")),
               maybe_bytes(bytes(rank, "device_bytes"))});
  if (!table.empty()) html.raw(table.take());
  const Json& steps = measurement.at("steps");
  if (!steps.empty()) html.heading(2, "Steps");
  line_picture(steps, "loss", "Loss", html);
  line_picture(steps, "tokens_per_second", "Tokens per second", html);
  if (const auto comparison = measurement.find("comparison");
      comparison != measurement.end() && !comparison->is_null()) {
    html.heading(2, "Against the prediction");
    one_comparison(*comparison, html);
  }
}

}  // namespace plimsoll::reports
