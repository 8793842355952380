// Writes reports/accuracy.md to standard output.
#include <cstdio>

#include "tests/planner/throughput_rows.h"

int main() {
  const std::string page = plimsoll::tests::accuracy_page(plimsoll::tests::throughput_rows());
  return std::fwrite(page.data(), 1, page.size(), stdout) == page.size() ? 0 : 1;
}
