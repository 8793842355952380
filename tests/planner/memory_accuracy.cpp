// Writes reports/memory_accuracy.md to standard output.
#include <cstdio>

#include "tests/planner/published_memory.h"

int main() {
  const std::string page = plimsoll::tests::memory_accuracy_page(plimsoll::tests::memory_rows());
  return std::fwrite(page.data(), 1, page.size(), stdout) == page.size() ? 0 : 1;
}
