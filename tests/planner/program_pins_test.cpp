// Programs, sizes, lifetimes, messages and times of drawn questions are what they were.
#include "tests/planner/program_pins.h"

#include <doctest/doctest.h>

#include <fstream>

using namespace plimsoll;

TEST_CASE("every drawn program is the pinned one") {
  std::ifstream pins(PLIMSOLL_GOLDEN "/program_pins.txt");
  std::string pinned;
  std::uint64_t number = 0, refused = 0;
  for (; std::getline(pins, pinned); ++number) {
    CAPTURE(number);
    INFO("build/tests/planner/program_pins > tests/golden/program_pins.txt writes them anew");
    CHECK(tests::program_pin(number) == pinned);
    refused += pinned.ends_with("refused") ? 1 : 0;
  }
  CHECK(number == tests::kPinnedPrograms);
  MESSAGE((number - refused) << " programs, " << refused << " refused questions");
  CHECK(refused * 3 < number);
}
