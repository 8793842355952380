// Answers to drawn questions over everything that can be asked are what they were.
#include <doctest/doctest.h>

#include <fstream>
#include <string>
#include <vector>

#include "tests/tools/wide_pins.h"

using namespace plimsoll;

namespace {

// Lines of the pinned file that begin with a digit, or with "s": searches.
std::vector<std::string> pinned(bool searches) {
  std::ifstream pins(PLIMSOLL_GOLDEN "/wide_pins.txt");
  std::vector<std::string> lines;
  for (std::string line; std::getline(pins, line);)
    if (line.starts_with('s') == searches) lines.push_back(line);
  return lines;
}

// How many were refused whole.
template <class Pin>
std::size_t check_pins(const std::vector<std::string>& lines, Pin pin) {
  INFO("build/tests/tools/wide_pins > tests/golden/wide_pins.txt writes them anew");
  std::size_t refused = 0;
  for (std::size_t i = 0; i < lines.size(); ++i) {
    CHECK(pin(i) == lines[i]);
    refused += lines[i].substr(lines[i].find(' ') + 1).starts_with("refused") ? 1 : 0;
  }
  return refused;
}

}  // namespace

TEST_CASE("every drawn question has the pinned answer") {
  const std::vector<std::string> lines = pinned(false);
  CHECK(lines.size() == tests::kWidePins);
  CHECK(check_pins(lines, tests::wide_pin) * 8 < lines.size());
}

TEST_CASE("every drawn search has the pinned answer") {
  const std::vector<std::string> lines = pinned(true);
  CHECK(lines.size() == tests::kWideSearches);
  CHECK(check_pins(lines, tests::wide_search_pin) * 8 < lines.size());
}
