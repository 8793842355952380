// Answers to drawn questions over everything that can be asked are what they were.
#include <doctest/doctest.h>

#include <algorithm>
#include <fstream>
#include <iterator>
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

// Twenty cases, so that who puts faults into the code need not ask all of them.
constexpr std::size_t kParts = 20;

void check_part(std::size_t part) {
  INFO("build/tests/tools/wide_pins > tests/golden/wide_pins.txt writes them anew");
  const std::vector<std::string> answers = pinned(false), searches = pinned(true);
  REQUIRE(answers.size() == tests::kWidePins);
  REQUIRE(searches.size() == tests::kWideSearches);
  for (std::size_t i = part; i < answers.size(); i += kParts)
    CHECK(tests::wide_pin(i) == answers[i]);
  for (std::size_t i = part; i < searches.size(); i += kParts)
    CHECK(tests::wide_search_pin(i) == searches[i]);
}

}  // namespace

TEST_CASE("of the pinned answers few are refusals alone") {
  const auto refused = [](const std::string& line) {
    return line.substr(line.find(' ') + 1).starts_with("refused");
  };
  CHECK(std::ranges::count_if(pinned(false), refused) * 8 < std::ssize(pinned(false)));
  CHECK(std::ranges::count_if(pinned(true), refused) * 8 < std::ssize(pinned(true)));
}

#define PLIMSOLL_PINNED(part)                                       \
  TEST_CASE("every drawn question has the pinned answer: " #part) { \
    check_part(part);                                               \
  }
PLIMSOLL_PINNED(0)
PLIMSOLL_PINNED(1)
PLIMSOLL_PINNED(2)
PLIMSOLL_PINNED(3)
PLIMSOLL_PINNED(4)
PLIMSOLL_PINNED(5)
PLIMSOLL_PINNED(6)
PLIMSOLL_PINNED(7)
PLIMSOLL_PINNED(8)
PLIMSOLL_PINNED(9)
PLIMSOLL_PINNED(10)
PLIMSOLL_PINNED(11)
PLIMSOLL_PINNED(12)
PLIMSOLL_PINNED(13)
PLIMSOLL_PINNED(14)
PLIMSOLL_PINNED(15)
PLIMSOLL_PINNED(16)
PLIMSOLL_PINNED(17)
PLIMSOLL_PINNED(18)
PLIMSOLL_PINNED(19)
