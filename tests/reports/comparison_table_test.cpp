#include "reports/comparison_table.h"

#include <doctest/doctest.h>

#include "tests/reports/made_up_comparison.h"

using namespace plimsoll;
using namespace plimsoll::reports;

namespace {
bool has(const std::string& text, std::string_view part) {
  return text.find(part) != std::string::npos;
}
}  // namespace

TEST_CASE("the table: signed differences, levels, the first difference, 80 columns") {
  Measurement m = measurement();
  m.ranks[1].ledgers[0].ledger.tensors[1].bytes = 99_B;
  m.ranks[1].peak = 1129_B;
  (*m.ranks[1].at_peak)[3] = 129_B;
  const std::string table = comparison_table(compare(prediction(), m), {});
  CHECK(table.starts_with("DISAGREES: tiny, stack plimsoll, 2 ranks\n"));
  CHECK(has(table,
            "Bytes on rank 1            predicted            measured          difference\n"
            "  parameters                   1,000               1,000                   0\n"
            "  activations                    130                 129                  -1\n"
            "  peak                         1,130               1,129                  -1\n"));
  CHECK(has(table, "  requested      differs      3 differences\n"));
  CHECK(has(table, "First difference of 3\n  rank 1, x, born op 0"));
  CHECK(
      has(table, "  unaccounted                                                              -\n"));
  std::size_t begin = 0;
  for (std::size_t end; (end = table.find('\n', begin)) != std::string::npos; begin = end + 1)
    CHECK(end - begin <= 80);
}
