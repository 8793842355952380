// Writes tests/golden/wide_pins.txt.
#include <cstdio>

#include "tests/tools/wide_pins.h"

using namespace plimsoll::tests;

int main() {
  for (std::uint64_t number = 0; number < kWidePins; ++number) std::puts(wide_pin(number).c_str());
  for (std::uint64_t number = 0; number < kWideSearches; ++number)
    std::puts(wide_search_pin(number).c_str());
}
