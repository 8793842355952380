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

// To rank 4: [64, 8] keeps 64 · 4 and a basis 4 · 8; a frozen one nothing; [3, 5] to rank 3 all its
// 15, from the left, and a basis 9; the vector its 7. Each is padded to 8 in 16 bits.
TEST_CASE("projected matrices have places of their own in moments and bases") {
  models::decisions::Regime regime;
  regime.base = {DType::bf16, DType::bf16, true, DType::fp32};
  const std::vector<UnitParameter> parameters{{"w", {64, 8}, true, false, nullptr, 4},
                                              {"f", {64, 8}, false},
                                              {"b", {7}},
                                              {"u", {3, 5}, true, false, nullptr, 4}};
  const UnitLayout layout = layout_of(parameters, regime, models::Optimizer::galore, 1);
  const FlatPart& part = layout.part(Part::trained);
  CHECK(part.projects);
  CHECK(part.length == 512 + 8 + 16);
  CHECK(part.moments == 256 + 8 + 16);
  CHECK(part.bases == 32 + 16);
  CHECK(layout.places[0].low_rank.right());
  CHECK(layout.places[2].first_moment == 256);
  CHECK(layout.places[3].first_moment == 264);
  CHECK(layout.places[3].first_basis == 32);
  CHECK(layout.places[3].low_rank.rank == 3);
  CHECK_FALSE(layout.places[3].low_rank.right());
  CHECK_FALSE(layout.part(Part::frozen).projects);
  CHECK_THROWS_AS(layout_of(parameters, regime, models::Optimizer::galore, 2), Error);
}

}  // namespace
}  // namespace plimsoll::runtime::shard
