// Prints a document of tools/oracle/drawn_runs.py beside what was planned, worst first.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "tests/planner/drawn_runs.h"

using plimsoll::tests::DrawnRun;

int main(int argc, char** argv) {
  if (argc != 2) return 2;
  std::vector<DrawnRun> runs = plimsoll::tests::drawn_runs(argv[1]);
  std::ranges::stable_sort(runs, {}, [](const DrawnRun& r) {
    return r.refusal.empty() ? -std::abs(r.reserved_error()) : 1.0;
  });
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
