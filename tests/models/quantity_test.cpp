#include "models/base/quantity.h"

#include <doctest/doctest.h>

#include <limits>
#include <string>
#include <vector>

#include "models/base/dtype.h"
#include "models/base/nearest.h"

using namespace plimsoll;

TEST_CASE("bytes beyond 2^63 are an error and never wrap") {
  const Bytes most(std::numeric_limits<std::int64_t>::max());
  CHECK_THROWS_AS(most + 1_B, Error);
  CHECK_THROWS_AS(most * 2, Error);
  CHECK_THROWS_AS(-Bytes(std::numeric_limits<std::int64_t>::min()), Error);
  CHECK((most - 1_B) + 1_B == most);
}

TEST_CASE("a last partial byte of 4-bit values counts whole") {
  CHECK(storage(Count(0), DType::nf4) == 0_B);
  CHECK(storage(Count(1), DType::nf4) == 1_B);
  CHECK(storage(Count(2), DType::nf4) == 1_B);
  CHECK(storage(Count(3), DType::nf4) == 2_B);
  CHECK(storage(Count(3), DType::bf16) == 6_B);
}

TEST_CASE("rounding up does not overflow near the top") {
  CHECK(round_up(0_B, 512) == 0_B);
  CHECK(round_up(1_B, 512) == 512_B);
  CHECK(round_up(512_B, 512) == 512_B);
  CHECK_THROWS_AS(round_up(Bytes(std::numeric_limits<std::int64_t>::max()), 512), Error);
}

TEST_CASE("a slip of the finger is named, nonsense is not") {
  const std::string_view names[] = {"llama", "mistral", "qwen2"};
  CHECK(nearest("lama", names) == "llama");
  CHECK(nearest("LLAMA", names) == "llama");
  CHECK(nearest("qwne2", names) == "qwen2");
  CHECK(nearest("zzzzzzzz", names) == "");
}

// Edits: a letter put in, left out, exchanged, or two neighbours swapped count 1 each; named is
// what is at most 2 away, or a third of the longer name. The first of equals.
TEST_CASE("how near a name must be") {
  const auto of = [](std::string_view name, std::vector<std::string_view> names) {
    return nearest(name, names);
  };
  CHECK(of("abcd", {"abdc", "abce"}) == "abdc");  // one swap, one exchange
  CHECK(of("abcd", {"abce", "abdc"}) == "abce");
  CHECK(of("abcd", {"abxy", "abdc"}) == "abdc");  // 2, 1
  CHECK(of("ab", {"ba"}) == "ba");
  CHECK(of("abcdefgh", {"badcfegh"}) == "");  // 3 swaps of 8 letters
  CHECK(of("abcdefghi", {"badcfeghi"}) == "badcfeghi");  // 3 of 9
  CHECK(of("abcdefghi", {"badcfehgi"}) == "");  // 4 of 9
  CHECK(of("abcdefghi", {"xyzdefghi"}) == "xyzdefghi");
  CHECK(of("abcdefghi", {"wxyzefghi"}) == "");
  CHECK(of("abcdef", {"abcdefghi"}) == "abcdefghi");  // 3 put in, of 9
  CHECK(of("abcdefghi", {"abcdef"}) == "abcdef");
  CHECK(of("abcde", {"abcdefgh"}) == "");  // 3 of 8
  CHECK(of("a", {"bc"}) == "");  // nothing is left of it
  CHECK(of("", {"abc"}) == "");
  CHECK(of("abc", {}) == "");
  CHECK(of(std::string(300, 'a'), {std::string_view("b")}) == "");
}
