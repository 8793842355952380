#include "tools/run/profile_rows.h"

#include <algorithm>
#include <map>
#include <tuple>

namespace plimsoll::tools {

namespace {

// layers.12.mlp -> layers.*.mlp
std::string of_all_layers(const std::string& op) {
  std::string text;
  for (std::size_t at = 0; at < op.size();) {
    const std::size_t dot = std::min(op.find('.', at), op.size());
    const std::string part = op.substr(at, dot - at);
    const bool number =
        !part.empty() && std::ranges::all_of(part, [](char c) { return c >= '0' && c <= '9'; });
    text += (at > 0 ? "." : "") + (number ? "*" : part);
    at = dot + 1;
  }
  return text;
}

}  // namespace

reports::Profile profile_of(const std::vector<runtime::KernelCost>& costs, double step_seconds,
                            std::optional<double> peak_flops,
                            std::optional<double> bytes_per_second) {
  std::map<std::tuple<std::string, models::Phase, std::string>, reports::ProfileRow> rows;
  for (const runtime::KernelCost& cost : costs) {
    const std::string op = cost.op.empty() ? "between ops" : of_all_layers(cost.op);
    reports::ProfileRow& row = rows[{op, cost.phase, cost.kernel}];
    row.op = op;
    row.phase = name_of(cost.phase);
    row.kernel = cost.kernel;
    ++row.calls;
    row.seconds += cost.seconds;
    row.bytes += cost.bytes;
    row.flops += cost.flops;
  }
  reports::Profile out{
      .step_seconds = step_seconds, .peak_flops = peak_flops, .bytes_per_second = bytes_per_second};
  for (auto& [key, row] : rows) {
    if (peak_flops && bytes_per_second && row.seconds > 0)
      row.roofline = std::max(row.flops / *peak_flops, row.bytes / *bytes_per_second) / row.seconds;
    out.rows.push_back(std::move(row));
  }
  std::ranges::stable_sort(out.rows, std::greater<>(), &reports::ProfileRow::seconds);
  return out;
}

reports::LibraryNotes notes_of(const runtime::LibraryUse& use) {
  reports::LibraryNotes notes;
  for (const auto& [library, why, times] : use.refusals)
    notes.refusals.push_back({library, why, times});
  for (const auto& [library, what, algorithm, seconds] : use.choices)
    notes.choices.push_back({library, what, algorithm, seconds});
  return notes;
}

}  // namespace plimsoll::tools
