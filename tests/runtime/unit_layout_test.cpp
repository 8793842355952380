#include <doctest/doctest.h>

#include "runtime/shard/unit_layout.h"

namespace plimsoll::runtime::shard {
namespace {

// [64, 64] and 1 in bf16: 4096 + 8 aligned elements, from 4096 on in blocks of 256. One shard: 17
// blocks. Three: 18, of which each has 6. An element less, and the part is not in blocks.
TEST_CASE("states in 8 bits pad a part to whole blocks for each shard") {
  const auto part = [](std::int64_t rows, std::int64_t shards) {
    models::decisions::Regime regime;
    regime.base = {DType::bf16, DType::bf16, true, DType::fp32};
    const std::vector<UnitParameter> parameters{{"w", {rows, 64}}, {"b", {1}}};
    return layout_of(parameters, regime, models::Optimizer::adam8bit, shards).part(Part::trained);
  };
  CHECK(part(64, 1).whole == 17 * 256);
  CHECK(part(64, 3).whole == 18 * 256);
  CHECK(part(64, 3).piece == 6 * 256);
  CHECK(part(64, 3).length == 4104);
  CHECK(part(64, 3).states.dtype == DType::uint8);
  CHECK(part(64, 3).states.scales(part(64, 3).piece) == 6);
  CHECK(part(63, 3).length == 4040);
  CHECK(part(63, 3).states.dtype == DType::fp32);
  CHECK(part(63, 3).whole == 4056);  // 3 · 1352, a multiple of 8
}

}  // namespace
}  // namespace plimsoll::runtime::shard
