#include "reports/snapshot/snapshot_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace plimsoll::reports {

namespace {
using Layout = JsonWriter::Layout;
constexpr std::size_t kMostRows = 8, kMostGroups = 1000;

class Table {
 public:
  explicit Table(const Terminal& terminal) : terminal_(terminal) {}

  void line(std::string_view text, Colour colour = Colour::none, std::string_view indent = "  ") {
    for (const std::string& part : wrapped(printable(text), terminal_.columns, indent))
      text_ += coloured(clipped(part, terminal_.columns, terminal_), colour, terminal_) + '\n';
  }
  void blank() { text_ += '\n'; }

  void row(std::string_view name, std::optional<Bytes> predicted, Bytes measured) {
    std::string difference = "-";
    if (predicted) {
      const Bytes more = measured - *predicted;
      difference = (more < Bytes(0)   ? "-"
                    : more > Bytes(0) ? "+"
                                      : "") +
                   bytes_text(Bytes(std::abs(more.value())));
    }
    text_ += fmt::format("  {}{}{}{}\n", padded(name, 14),
                         right(predicted ? bytes_text(*predicted) : "-", 16),
                         right(bytes_text(measured), 16), right(difference, 16));
  }

  void groups(std::string_view title, const std::vector<SnapshotGroup>& groups) {
    if (groups.empty()) return;
    blank();
    line(title);
    for (std::size_t i = 0; i < std::min(kMostRows, groups.size()); ++i) {
      const SnapshotGroup& g = groups[i];
      std::string name = g.name.empty() ? "no stack was recorded" : g.name;
      if (g.stays && g.category.empty()) name += " (stays)";
      const std::string left = fmt::format(
          "  {}{}  ", right(bytes_text(g.total()), 10),
          right(g.count == 1 ? "" : fmt::format("{} x {}", g.count, bytes_text(g.size)), 20));
      text_ += left + clipped(printable(name), terminal_.columns - width(left), terminal_) + '\n';
    }
    if (groups.size() > kMostRows) {
      Bytes rest;
      for (std::size_t i = kMostRows; i < groups.size(); ++i) rest += groups[i].total();
      text_ += fmt::format("  {}  in {} more kinds\n", right(bytes_text(rest), 10),
                           groups.size() - kMostRows);
    }
  }

  std::string take() { return std::move(text_); }

 private:
  const Terminal& terminal_;
  std::string text_;
};

std::string count(std::size_t n) {
  return grouped(Count(static_cast<std::int64_t>(n)));
}

std::string share_text(const SnapshotShare& share) {
  return fmt::format("{} of {}, {:.1f} % of {}", count(share.found), count(share.count),
                     100 * (1 - share.without_partner()), bytes_text(share.bytes));
}

void write_share(JsonWriter& json, const char* key, const SnapshotShare& share) {
  json.key(key);
  json.begin_object(Layout::line);
  json.member("found", share.found);
  json.member("count", share.count);
  json.member("found_bytes", share.found_bytes);
  json.member("bytes", share.bytes);
  json.member("without_partner", share.without_partner());
  json.end_object();
}

void write_groups(JsonWriter& json, const char* key, const std::vector<SnapshotGroup>& groups,
                  bool planned) {
  json.key(key);
  json.begin_array();
  for (std::size_t i = 0; i < std::min(kMostGroups, groups.size()); ++i) {
    const SnapshotGroup& g = groups[i];
    json.begin_object(Layout::line);
    json.member(planned ? "name" : "where", g.name.empty() ? std::optional<std::string>() : g.name);
    if (planned) json.member("category", g.category);
    json.member("count", g.count);
    json.member("bytes", g.size);
    json.member("total_bytes", g.total());
    if (!planned) json.member("at_peak", g.at_peak);
    json.member("stays", g.stays);
    json.end_object();
  }
  json.end_array();
}

void write_figure(JsonWriter& json, const char* key, std::optional<Bytes> predicted, Bytes measured,
                  Bytes highest) {
  json.key(key);
  json.begin_object(Layout::line);
  json.member("predicted_bytes", predicted);
  json.member("measured_bytes", measured);
  json.member("difference_bytes", predicted ? std::optional(measured - *predicted) : std::nullopt);
  json.member("highest_measured_bytes", highest);
  json.end_object();
}

void write_members(JsonWriter& json, const SnapshotComparison& c) {
  json.member("agrees", c.agrees);
  json.member("prediction", c.prediction);
  json.member("snapshot", c.snapshot);
  json.key("workload");
  json.begin_object(Layout::line);
  json.member("fingerprint", c.fingerprint);
  json.member("model", c.model.empty() ? std::optional<std::string>() : c.model);
  json.member("stack", c.stack);
  json.end_object();
  json.key("step");
  json.begin_object(Layout::line);
  json.member("device", c.device);
  json.member("events", c.events);
  json.member("first_event", c.first_event);
  json.member("last_event", c.last_event);
  json.end_object();
  write_figure(json, "peak", c.predicted_peak, c.measured_peak, c.highest_allocated);
  write_figure(json, "reserved", c.predicted_reserved, c.measured_reserved, c.highest_reserved);
  json.member("left_behind_bytes", c.left_behind);
  write_share(json, "planned_tensors", c.plan);
  write_share(json, "allocations", c.measured);
  write_share(json, "allocations_at_peak", c.at_peak);
  json.key("scratch");
  json.begin_object(Layout::line);
  json.member("count", c.scratch);
  json.member("bytes", c.scratch_bytes);
  json.end_object();
  write_groups(json, "only_measured", c.only_measured, false);
  write_groups(json, "only_planned", c.only_planned, true);
  write_groups(json, "outlived", c.outlived, true);
  json.key("notes");
  json.begin_array();
  for (const std::string& note : c.notes) json.value(note);
  json.end_array();
}
}  // namespace

std::string snapshot_table(const SnapshotComparison& c, const Terminal& terminal) {
  Table table(terminal);
  table.line(
      fmt::format("{}: {}, stack {}, and the snapshot of a run", c.agrees ? "AGREES" : "DISAGREES",
                  c.model.empty() ? "no model" : c.model, c.stack),
      c.agrees ? Colour::green : Colour::red);
  table.blank();
  table.line("In one step             predicted        measured      difference");
  table.row("peak", c.predicted_peak, c.measured_peak);
  table.row("reserved", c.predicted_reserved, c.measured_reserved);
  table.blank();
  table.line("Found");
  table.line("  tensors of the plan    " + share_text(c.plan), Colour::none, "    ");
  table.line("  allocations            " + share_text(c.measured), Colour::none, "    ");
  table.line("  those at the peak      " + share_text(c.at_peak), Colour::none, "    ");
  if (c.scratch > 0)
    table.line(fmt::format("  and {} allocations, {}, of scratch that comes and goes within an "
                           "operator; the plan counts it while that runs",
                           count(c.scratch), bytes_text(c.scratch_bytes)),
               Colour::none, "    ");
  table.groups("In the snapshot, and not in the plan", c.only_measured);
  table.groups("In the plan, and not in the snapshot", c.only_planned);
  table.groups("Found, and kept beyond the step", c.outlived);
  table.blank();
  table.line(fmt::format("Step: events {} to {} of {}.", count(c.first_event), count(c.last_event),
                         count(c.events)));
  if (c.left_behind > Bytes(0))
    table.line("It leaves " + bytes_text(c.left_behind) + " more allocated than it found.",
               Colour::yellow);
  if (c.highest_allocated > c.measured_peak)
    table.line("Elsewhere in the history up to " + bytes_text(c.highest_allocated) +
               " were allocated.");
  for (const std::string& note : c.notes) table.line("Note: " + note);
  return table.take();
}

void write_snapshot_comparisons(JsonWriter& json, std::span<const SnapshotComparison> comparisons,
                                const Tool& tool) {
  json.begin_object();
  json.member("schema", "plimsoll.snapshot_comparison/1");
  json.key("tool");
  json.begin_object(Layout::line);
  json.member("version", tool.version);
  json.member("commit", tool.commit);
  json.end_object();
  if (comparisons.size() == 1) {
    write_members(json, comparisons[0]);
  } else {
    json.member("agrees", std::ranges::all_of(comparisons, &SnapshotComparison::agrees));
    json.key("comparisons");
    json.begin_array();
    for (const SnapshotComparison& one : comparisons) {
      json.begin_object();
      write_members(json, one);
      json.end_object();
    }
    json.end_array();
  }
  json.end_object();
}

}  // namespace plimsoll::reports
