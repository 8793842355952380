// Writes tests/golden/program_pins.txt.
#include <cstdio>

#include "tests/planner/program_pins.h"

int main() {
  for (std::uint64_t i = 0; i < plimsoll::tests::kPinnedPrograms; ++i)
    std::puts(plimsoll::tests::program_pin(i).c_str());
}
