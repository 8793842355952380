#include "reports/comparison_table.h"

#include <fmt/format.h>

namespace plimsoll::reports {

namespace {
constexpr std::size_t kNameColumns = 14, kBytesColumns = 20;

std::string figure(const std::optional<Bytes>& bytes, bool with_sign = false) {
  if (!bytes) return "-";
  const bool negative = *bytes < Bytes(0);
  const std::string digits =
      grouped(Count(negative ? checked_multiply(bytes->value(), -1) : bytes->value()));
  if (negative) return "-" + digits;
  return (with_sign && *bytes > Bytes(0) ? "+" : "") + digits;
}

class Table {
 public:
  explicit Table(const Terminal& terminal) : terminal_(terminal) {}

  void line(std::string_view text, Colour colour = Colour::none, std::string_view indent = "  ") {
    for (const std::string& part : wrapped(printable(text), terminal_.columns, indent))
      put(coloured(clipped(part, terminal_.columns, terminal_), colour, terminal_));
  }
  void blank() { text_ += '\n'; }

  void row(const Row& row) {
    const std::optional<Bytes> difference = row.difference();
    const std::string cell = right(figure(difference, true), kBytesColumns);
    const bool differs = difference && *difference != Bytes(0);
    put("  " + padded(row.name, kNameColumns) + right(figure(row.predicted), kBytesColumns) +
        right(figure(row.measured), kBytesColumns) +
        coloured(cell, differs ? Colour::yellow : Colour::none, terminal_));
  }

  void rank(const RankComparison& rank) {
    blank();
    put(padded("Bytes on rank " + std::to_string(rank.rank), kNameColumns + 2) +
        right("predicted", kBytesColumns) + right("measured", kBytesColumns) +
        right("difference", kBytesColumns));
    for (const Row& category : rank.categories)
      if (category.predicted.value_or(Bytes(0)) != Bytes(0) ||
          category.measured.value_or(Bytes(0)) != Bytes(0))
        row(category);
    row(rank.peak);
    row(rank.resident);
    row(rank.reserved);
    row(rank.device);
    put("  " + padded("unaccounted", kNameColumns) + std::string(2 * kBytesColumns, ' ') +
        right(figure(rank.unaccounted, true), kBytesColumns));
  }

  void level(std::string_view name, const Level& level) {
    const Colour colour = level.verdict == Level::Verdict::differs        ? Colour::red
                          : level.verdict == Level::Verdict::not_compared ? Colour::faint
                                                                          : Colour::green;
    const std::string head = "  " + padded(name, kNameColumns) + " ";
    const std::string verdict = padded(name_of(level.verdict), 13);
    const std::size_t room = terminal_.columns - width(head) - width(verdict);
    put(head + coloured(verdict, colour, terminal_) +
        clipped(printable(level.text), room, terminal_));
  }

  std::string take() { return std::move(text_); }

 private:
  void put(std::string_view line) {
    while (line.ends_with(' ')) line.remove_suffix(1);
    text_ += line;
    text_ += '\n';
  }
  const Terminal& terminal_;
  std::string text_;
};
}  // namespace

std::string comparison_table(const Comparison& comparison, const Terminal& terminal) {
  Table table(terminal);
  const std::string ranks =
      comparison.ranks.size() == 1 ? "1 rank" : fmt::format("{} ranks", comparison.ranks.size());
  const bool differs = comparison.memory.verdict == Level::Verdict::differs ||
                       comparison.reserved.verdict == Level::Verdict::differs ||
                       comparison.device.verdict == Level::Verdict::differs;
  const char* verdict = comparison.agrees ? "AGREES" : differs ? "DISAGREES" : "NOT TRAINED";
  table.line(fmt::format("{}: {}, stack {}, {}", verdict,
                         comparison.model.empty() ? "no model" : comparison.model, comparison.stack,
                         ranks),
             comparison.agrees ? Colour::green : Colour::red);
  if (!comparison.outcome_text.empty())
    table.line("  " + comparison.outcome_text + (differs ? "" : "; its memory is as predicted"),
               Colour::red);
  if (!comparison.ranks.empty()) table.rank(comparison.ranks[comparison.shown]);
  table.blank();
  table.line("Levels");
  table.level("requested", comparison.memory);
  table.level("reserved", comparison.reserved);
  table.level("device", comparison.device);
  table.level("time", comparison.time);
  const std::string first = comparison.first_difference();
  if (!first.empty()) {
    table.blank();
    table.line(fmt::format("First difference{}",
                           comparison.differences.size() == 1
                               ? ""
                               : fmt::format(" of {}", comparison.differences.size())));
    table.line("  " + first, Colour::none, "    ");
  }
  if (!comparison.notes.empty()) table.blank();
  for (const std::string& note : comparison.notes) table.line("Note: " + note);
  return table.take();
}

}  // namespace plimsoll::reports
