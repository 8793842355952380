// What is asked for again stays; of the rest the oldest goes, by its size.
#include "models/base/remembered.h"

#include <doctest/doctest.h>

#include <string>

using plimsoll::Remembered;

// 1 and 2, 3 and 4; asked for, 1 begins a third generation, and the first is gone.
TEST_CASE("of more than two generations the oldest is forgotten") {
  Remembered<int, std::string> known(2);
  for (int i = 1; i <= 4; ++i) CHECK(known.add(i, std::to_string(i)) == std::to_string(i));
  REQUIRE(known.find(1) != nullptr);
  CHECK(*known.find(1) == "1");
  CHECK(known.find(2) == nullptr);
  REQUIRE(known.find(3) != nullptr);
  CHECK(*known.find(3) == "3");
}

TEST_CASE("what is asked for between others is never forgotten") {
  Remembered<int, int> known(2);
  known.add(0, 7);
  for (int i = 1; i < 100; ++i) {
    known.add(i, i);
    REQUIRE(known.find(0) != nullptr);
    CHECK(*known.find(0) == 7);
  }
  CHECK(known.find(50) == nullptr);
}

// 6 + 6 > 10: the second begins a generation; with 4 that is full to the brim.
TEST_CASE("entries count by their sizes, and no others are held than a generation has room for") {
  Remembered<std::string, int> known(10);
  known.add("a", 1, 6);
  known.add("b", 2, 6);
  known.add("c", 3, 4);
  CHECK(known.find("b") != nullptr);
  CHECK(known.find("a") != nullptr);  // comes back, and begins the next one
  CHECK(known.find("c") != nullptr);
  known.add("d", 4, 1);  // 6 + 4 + 1
  CHECK(known.find("b") == nullptr);
}
