#include "models/base/quantity.h"

#include <doctest/doctest.h>

#include <limits>

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
