#include "reports/plot.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
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

constexpr std::size_t kNothing = models::kCategories;
// The picture's colours (timeline_svg.cpp), of a terminal's 256.
constexpr std::array<int, models::kCategories> kColours{25, 178, 74, 36, 175, 166, 227, 246};

// The category at this height, kNothing above them all.
std::size_t category_at(const TimelinePoint& point, double height) {
  double level = 0;
  for (std::size_t c = 0; c < models::kCategories; ++c) {
    level += point.by_category[c].real();
    if (height < level) return c;
  }
  return kNothing;
}

// A column of one row: a letter, or two heights in a block.
struct Cell {
  std::size_t upper = kNothing, lower = kNothing;
  bool operator==(const Cell&) const = default;
};

std::string cells_in_colour(const Cell& cell, std::size_t n, const Terminal& terminal) {
  std::string text, block = "█";
  if (!terminal.utf8) block = kLetters[cell.lower];
  if (terminal.utf8 && cell.upper == kNothing) block = "▄";
  if (terminal.utf8 && cell.upper != cell.lower && cell.upper != kNothing) block = "▀";
  for (std::size_t i = 0; i < n; ++i) text += block;
  const std::size_t front = block == "▀" ? cell.upper : cell.lower;
  const std::string behind = block == "▀" ? fmt::format(";48;5;{}", kColours[cell.lower]) : "";
  return fmt::format("\x1b[38;5;{}{}m{}\x1b[0m", kColours[front], behind, text);
}

// Equal neighbours at once; nothing behind the last that is there.
std::string row_text(const std::vector<Cell>& cells, const Terminal& terminal) {
  std::string out;
  for (std::size_t begin = 0, end = 0; begin < cells.size(); begin = end) {
    while (end < cells.size() && cells[end] == cells[begin]) ++end;
    const std::size_t n = end - begin;
    if (cells[begin].lower == kNothing)
      out += end < cells.size() ? std::string(n, ' ') : "";
    else
      out += terminal.colour ? cells_in_colour(cells[begin], n, terminal)
                             : std::string(n, kLetters[cells[begin].lower]);
  }
  return out;
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
    const std::string_view name = part.substr(0, end - begin - 1);
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

// "P=parameters" with a block of its colour for the letter and the sign.
std::string in_colour(const std::string& legend, const Terminal& terminal) {
  std::string out;
  for (std::size_t i = 0; i < legend.size(); ++i) {
    const std::size_t c = kLetters.find(legend[i]);
    const bool is_key = c != kLetters.npos && i + 1 < legend.size() && legend[i + 1] == '=';
    if (!is_key) {
      out += legend[i];
      continue;
    }
    out += cells_in_colour({c, c}, 1, terminal) + (terminal.utf8 ? " " : "=");
    ++i;
  }
  return out;
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
    out +=
        labelled ? right(bytes_text(top), kLabel - 2) + " |" : std::string(kLabel - 2, ' ') + " |";
    std::vector<Cell> cells;
    for (const TimelinePoint* column : columns) {
      const double half = terminal.colour && terminal.utf8 ? row / 4 : 0;
      cells.push_back({category_at(*column, middle + half), category_at(*column, middle - half)});
    }
    out += row_text(cells, terminal) + "\n";
  }
  out += std::string(kLabel, ' ') + phases(columns) + "\n";
  for (const std::string& line : wrapped(legend(timeline), terminal.columns - kLabel, ""))
    out += std::string(kLabel, ' ') + (terminal.colour ? in_colour(line, terminal) : line) + "\n";
  return out;
}

}  // namespace plimsoll::reports
