// Answers to drawn questions over everything that can be asked are what they were.
#include <doctest/doctest.h>

#include <fstream>

#include "tests/tools/wide_pins.h"

using namespace plimsoll;

TEST_CASE("every drawn question has the pinned answer") {
  std::ifstream pins(PLIMSOLL_GOLDEN "/wide_pins.txt");
  std::string pinned;
  std::uint64_t number = 0, refused = 0;
  for (; std::getline(pins, pinned); ++number) {
    INFO("build/tests/tools/wide_pins > tests/golden/wide_pins.txt writes them anew");
    CHECK(tests::wide_pin(number) == pinned);
    refused += pinned.starts_with(std::to_string(number) + " refused") ? 1 : 0;
  }
  CHECK(number == tests::kWidePins);
  MESSAGE((number - refused) << " answers, " << refused << " questions that were refused whole");
  CHECK(refused * 4 < number);
}
