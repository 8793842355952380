#include "reports/plot.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace plimsoll::reports {

namespace {

constexpr std::size_t kRows = 16;
constexpr std::size_t kLabel = 10;  // "42.7 GiB |"
constexpr std::string_view kLetters = "PGOALTCW";  // in the order of models::Category
static_assert(kLetters.size() == models::kCategories);

// The highest point of each column's share of the step.
std::vector<const TimelinePoint*> columns_of(const Timeline& timeline, std::size_t n) {
  const std::vector<TimelinePoint>& points = timeline.points;
  std::vector<const TimelinePoint*> columns;
  for (std::size_t i = 0; i < n; ++i) {
    const std::size_t begin = i * points.size() / n;
    const std::size_t end = std::max(begin + 1, (i + 1) * points.size() / n);
    const auto first = points.begin() + static_cast<std::ptrdiff_t>(begin);
    const auto last = points.begin() + static_cast<std::ptrdiff_t>(end);
    columns.push_back(&*std::ranges::max_element(first, last, {}, &TimelinePoint::high_water));
  }
  return columns;
}

// The category at this height, ' ' above them all.
char letter_at(const TimelinePoint& point, double height) {
  double level = 0;
  for (std::size_t c = 0; c < models::kCategories; ++c) {
    level += point.by_category[c].real();
    if (height < level) return kLetters[c];
  }
  return ' ';
}

std::string_view part_of(const std::string& phase) {
  return phase == name_of(models::Phase::recompute) ? name_of(models::Phase::backward)
                                                    : std::string_view(phase);
}

std::string phases(const std::vector<const TimelinePoint*>& columns) {
  std::string line;
  for (std::size_t begin = 0, end = 0; begin < columns.size(); begin = end) {
    const std::string_view part = part_of(columns[begin]->phase);
    while (end < columns.size() && part_of(columns[end]->phase) == part) ++end;
    const std::string_view name = part.substr(0, std::max<std::size_t>(end - begin, 2) - 1);
    line += "|" + padded(name, end - begin - 1);
  }
  return line;
}

std::string legend(const Timeline& timeline) {
  std::string text;
  for (std::size_t c = 0; c < models::kCategories; ++c) {
    const auto has = [&](const TimelinePoint& p) { return p.by_category[c] > Bytes(0); };
    if (std::ranges::any_of(timeline.points, has))
      text += fmt::format("{}{}={}", text.empty() ? "" : "  ", kLetters[c],
                          models::name_of(static_cast<models::Category>(c)));
  }
  return text;
}

}  // namespace

std::string timeline_plot(const Timeline& timeline, const Terminal& terminal) {
  if (timeline.points.empty()) return "";
  const auto columns = columns_of(timeline, terminal.columns - kLabel);
  const double row = timeline.peak.real() / kRows;
  std::string out = fmt::format("\nMemory over the step (rank {})\n", timeline.peak_place.rank);
  for (std::size_t r = kRows; r-- > 0;) {
    const double middle = (static_cast<double>(r) + 0.5) * row;
    const bool labelled = r % 5 == 0;
    const Bytes top(std::llround(static_cast<double>(r + 1) * row));
    std::string line =
        labelled ? right(bytes_text(top), kLabel - 2) + " |" : std::string(kLabel - 2, ' ') + " |";
    for (const TimelinePoint* column : columns) line += letter_at(*column, middle);
    out += line.substr(0, line.find_last_not_of(' ') + 1) + "\n";
  }
  out += std::string(kLabel, ' ') + phases(columns) + "\n";
  for (const std::string& line : wrapped(legend(timeline), terminal.columns - kLabel, ""))
    out += std::string(kLabel, ' ') + line + "\n";
  return out;
}

}  // namespace plimsoll::reports
