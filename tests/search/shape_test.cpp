// Which strategies share a program but for how many ranks share the parameters.
#include "planner/search/shape.h"

#include <doctest/doctest.h>

using namespace plimsoll;
using planner::search::shape_of;
using planner::search::shards_of;

namespace {
models::Strategy strategy(models::Stack stack, int zero, std::int64_t gpus,
                          std::int64_t group = 0) {
  models::Strategy s;
  s.stack = stack;
  s.data.zero = zero;
  s.gpus = gpus;
  s.data.shard_group = group;
  return s;
}
constexpr auto kPytorch = models::Stack::pytorch;
}  // namespace

TEST_CASE("ranks that share parameters are the group's, or all; below the third stage none do") {
  CHECK(shards_of(strategy(kPytorch, 3, 8)) == 8);
  CHECK(shards_of(strategy(kPytorch, 3, 16, 4)) == 4);
  CHECK(shards_of(strategy(kPytorch, 0, 8)) == 1);
}

TEST_CASE("FSDP2 of Transformers has one shape for every world and group") {
  const models::Strategy two = strategy(kPytorch, 3, 2);
  CHECK(shape_of(strategy(kPytorch, 3, 8)) == two);
  CHECK(shape_of(strategy(kPytorch, 3, 1024)) == two);
  CHECK(shape_of(strategy(kPytorch, 3, 16, 8)) == two);
  CHECK(shape_of(strategy(kPytorch, 2, 8)) == strategy(kPytorch, 2, 2));
}

TEST_CASE("what has no such shape stays as it is") {
  const auto same = [](const models::Strategy& s) { return shape_of(s) == s; };
  CHECK(same(strategy(kPytorch, 0, 8)));
  CHECK(same(strategy(kPytorch, 1, 8)));
  CHECK(same(strategy(models::Stack::deepspeed, 3, 8)));
  CHECK(same(strategy(models::Stack::plimsoll, 3, 8)));
  CHECK(same(strategy(kPytorch, 3, 1)));  // one rank shares nothing
  models::Strategy first = strategy(kPytorch, 3, 8);
  first.data.fsdp_version = 1;
  CHECK(same(first));
  models::Strategy titan = strategy(kPytorch, 3, 8);
  titan.code = models::ModelCode::torchtitan_0_2_2;
  CHECK(same(titan));
}
