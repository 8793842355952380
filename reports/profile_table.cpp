#include "reports/profile_table.h"

#include <fmt/format.h>

#include <algorithm>

namespace plimsoll::reports {

namespace {

std::string line(std::string_view op, const ProfileRow& row, double step) {
  const double ms = 1e3 * row.seconds;
  const std::string share = row.roofline ? fmt::format("{:.0f} %", 100 * *row.roofline) : "-";
  const auto rate = [&](double work, double unit) {
    return row.seconds > 0 && work > 0 ? fmt::format("{:.3g}", work / row.seconds / unit)
                                       : std::string("-");
  };
  return fmt::format("  {} {:>6} {:>9.3f} {:>6.1f} {:>6} {:>6} {:>6}\n", padded(op, 32), row.calls,
                     ms, step > 0 ? 100 * row.seconds / step : 0, rate(row.bytes, 1e9),
                     rate(row.flops, 1e12), share);
}

}  // namespace

std::string profile_table(const Profile& profile, std::size_t rows, const Terminal& terminal) {
  const double step = profile.step_seconds;
  std::string text =
      fmt::format("\n{} {:>6} {:>9} {:>6} {:>6} {:>6} {:>6}\n",
                  padded(fmt::format("Time of a step of {:.3f} ms, by kernel", 1e3 * step), 34),
                  "calls", "ms", "%", "GB/s", "TF/s", "roof");
  double all = 0;
  ProfileRow others;
  for (std::size_t i = 0; i < profile.rows.size(); ++i) {
    const ProfileRow& row = profile.rows[i];
    all += row.seconds;
    if (i < rows) {
      const std::string op = fmt::format("{} ({})", row.op, row.phase);
      text += line(clipped(printable(op), 32, terminal), row, step);
      continue;
    }
    others.calls += row.calls;
    others.seconds += row.seconds;
    others.bytes += row.bytes;
    others.flops += row.flops;
  }
  if (others.calls > 0) text += line("all others", others, step);
  text += fmt::format("  {} {:>6} {:>9.3f} {:>6.1f}\n", padded("between kernels", 32), "",
                      1e3 * std::max(0.0, step - all),
                      step > 0 ? 100 * std::max(0.0, step - all) / step : 0);
  return text;
}

}  // namespace plimsoll::reports
