// Writes tests/golden/wide_pins.txt.
#include <cstdio>

#include "tests/tools/wide_pins.h"

int main() {
  for (std::uint64_t number = 0; number < plimsoll::tests::kWidePins; ++number)
    std::puts(plimsoll::tests::wide_pin(number).c_str());
}
