// L1 and L2 of workloads drawn by seed. PLIMSOLL_SEED: the first seed; PLIMSOLL_CASES: how many.
#include <doctest/doctest.h>

#include <cstdlib>

#include "planner/memory/arena_replay.h"
#include "tests/witness/drawn.h"

namespace plimsoll::witness {
namespace {

std::uint64_t setting(const char* name, std::uint64_t otherwise) {
  const char* value = std::getenv(name);
  return value == nullptr ? otherwise : std::strtoull(value, nullptr, 10);
}

// Why a combination cannot be; "" where it can.
std::string planned_refusal(const Case& c) {
  try {
    predicted(c);
  } catch (const Error& error) {
    if (error.kind() == ErrorKind::bad_input || error.kind() == ErrorKind::unsupported)
      return error.message();
  }
  return "";
}

// Behind the rank that said so.
std::string run_refusal(const Case& c) {
  try {
    measured(c);
  } catch (const Error& error) {
    const std::size_t rank = error.message().find(": ");
    return error.message().substr(rank + 2);
  }
  return "";
}

void check_drawn(Case (*draw)(std::uint64_t)) {
  const std::uint64_t first = setting("PLIMSOLL_SEED", 1), count = setting("PLIMSOLL_CASES", 100);
  std::uint64_t compared = 0;
  for (std::uint64_t seed = first; seed < first + count; ++seed) {
    const Case c = draw(seed);
    CAPTURE(seed);
    CAPTURE(text(c));
    if (const std::string refusal = planned_refusal(c); !refusal.empty()) {
      CHECK(run_refusal(c) == refusal);
      continue;
    }
    ++compared;
    CHECK(difference_of(c) == "");
    // Equal micro-batches are stored once: enough to know what is reserved.
    const Predicted plan = predicted(c);
    CHECK(planner::arena_reserved(plan.program, planner::unroll(plan.program)) ==
          planner::arena_reserved(plan.program, plan.timeline));
  }
  MESSAGE(compared << " of " << count << " compared");
  CHECK(compared * 2 > count);
}

TEST_CASE("workloads drawn by seed") {
  check_drawn(drawn);
}

TEST_CASE("workloads in 8 bits drawn by seed") {
  check_drawn(drawn_in_float8);
}

TEST_CASE("a loss in two chunks") {
  for (const models::Loss loss : {models::Loss::chunked, models::Loss::fused}) {
    const Case c = two_chunks(loss);
    CAPTURE(text(c));
    CHECK(difference_of(c) == "");
  }
}

}  // namespace
}  // namespace plimsoll::witness
