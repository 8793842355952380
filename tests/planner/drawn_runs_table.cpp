// Prints a document of tools/oracle/drawn_runs.py or dry_runs.py beside what was planned, worst
// first.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "tests/planner/drawn_runs.h"

using plimsoll::tests::DrawnRun;

namespace {
// In units of what the full-size runs are held to: 0.1 % of the peak, 6 % of reserved bytes.
double miss(const DrawnRun& run) {
  return std::max(std::abs(run.peak_error()) / 0.001, std::abs(run.reserved_error()) / 0.06);
}
}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) return 2;
  std::vector<DrawnRun> runs = plimsoll::tests::drawn_runs(argv[1]);
  std::ranges::stable_sort(runs, {},
                           [](const DrawnRun& r) { return r.refusal.empty() ? -miss(r) : 1.0; });
  for (const DrawnRun& r : runs) {
    if (!r.refusal.empty()) {
      fmt::print("{} refused: {}\n", r.name, r.refusal);
      continue;
    }
    fmt::print("{} peak {:+.3f} % reserved {:+.3f} % (unlucky {:+.3f} %) of {:.0f} MiB: {}\n",
               r.name, 100 * r.peak_error(), 100 * r.reserved_error(), 100 * r.unlucky_error(),
               r.reserved.real() / (1 << 20), r.about);
  }
}
