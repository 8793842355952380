// A replay that is remembered is the one that would be made: for programs made at random and for
// others that differ from them in one thing.
#include "planner/memory/known_replays.h"

#include <doctest/doctest.h>

#include <functional>
#include <vector>

#include "tests/planner/drawn_requests.h"

using namespace plimsoll;
using namespace plimsoll::planner;
using tests::DrawnRequests;

namespace {

using Change = std::function<void(DrawnRequests&, std::size_t)>;

void take_one(DrawnRequests& drawn, std::size_t which, std::int64_t instance) {
  drawn.start = {};
  drawn.start.take_instance(static_cast<models::TensorId>(which), instance);
  drawn.start.drop(drawn.start.hold(9_MiB));
}

Gathers gathered(Bytes bytes) {
  return {{.block = 0, .bytes = bytes}, {.block = 0, .goes = true}};
}

// What decides a replay, one thing at a time; `which` tensor.
const std::vector<Change>& changes() {
  static const std::vector<Change> all{
      [](DrawnRequests&, std::size_t) {},
      [](DrawnRequests& d, std::size_t which) { d.program.tensors[which].bytes += Bytes(3 << 20); },
      [](DrawnRequests& d, std::size_t which) {
        auto& stream = d.program.tensors[which].stream;
        stream =
            stream == models::Stream::compute ? models::Stream::reduce : models::Stream::compute;
      },
      [](DrawnRequests& d, std::size_t which) {
        auto& category = d.program.tensors[which].category;
        category = category == models::Category::optimizer ? models::Category::activations
                                                           : models::Category::optimizer;
      },
      [](DrawnRequests& d, std::size_t) { d.start.hold(5_MiB); },
      [](DrawnRequests& d, std::size_t) { d.start.hold(7_MiB); },
      [](DrawnRequests& d, std::size_t) { d.start.drop(d.start.hold(7_MiB)); },
      [](DrawnRequests& d, std::size_t which) {
        d.start.take(static_cast<models::TensorId>(which));
      },
      // One instance before what is held for a while, the others behind it.
      [](DrawnRequests& d, std::size_t which) { take_one(d, which, 0); },
      [](DrawnRequests& d, std::size_t which) { take_one(d, which, 1); },
      [](DrawnRequests& d, std::size_t) { d.start.take_model(); },
      [](DrawnRequests& d, std::size_t) { d.start.keep(7_MiB); },
      [](DrawnRequests& d, std::size_t) { d.start.let_go_where_short(); },
      [](DrawnRequests& d, std::size_t) {
        d.start.drop(d.start.hold(50_MiB));
        d.start.flush();
      },
      [](DrawnRequests& d, std::size_t) {
        d.start.set_gathers({Gathers{}, gathered(60_MiB)});
      },
      [](DrawnRequests& d, std::size_t) {
        d.start.set_gathers({gathered(90_MiB), gathered(60_MiB)});
      },
      [](DrawnRequests& d, std::size_t) {
        d.start.before_second_step();
        d.start.hold(30_MiB);
      },
      [](DrawnRequests& d, std::size_t) { d.conf = {.expandable_segments = true}; },
      [](DrawnRequests& d, std::size_t) { d.conf = {.max_split_size = 20_MiB}; },
      [](DrawnRequests& d, std::size_t) { d.conf = {.max_split_size = 40_MiB}; },
      [](DrawnRequests& d, std::size_t) {
        d.conf = {.max_split_size = 2_MiB, .max_non_split_rounding = 1_MiB};
      },
      [](DrawnRequests& d, std::size_t) {
        d.conf = {.max_split_size = 2_MiB, .max_non_split_rounding = 512_MiB};
      },
      [](DrawnRequests& d, std::size_t) { d.conf.roundup_power2_divisions.fill(4); },
      [](DrawnRequests& d, std::size_t) { d.conf.roundup_power2_divisions.back() = 8; },
      [](DrawnRequests& d, std::size_t) { d.conf.roundup_power2_divisions.front() = 8; }};
  return all;
}

struct Came {
  Reserved needed;
  std::optional<Bytes> unlucky;
};

Came came_to(const DrawnRequests& drawn, Room room) {
  Came out;
  out.needed =
      replay_on(drawn.program, unroll(drawn.program), room, drawn.start, drawn.conf, out.unlucky);
  return out;
}

void check_same(const Came& a, const Came& b) {
  REQUIRE(a.needed.fits == b.needed.fits);
  REQUIRE(a.needed.reserved == b.needed.reserved);
  REQUIRE(a.needed.allocated == b.needed.allocated);
  REQUIRE(a.needed.resident == b.needed.resident);
  REQUIRE(a.needed.calls.mallocs == b.needed.calls.mallocs);
  REQUIRE(a.needed.calls.malloced == b.needed.calls.malloced);
  REQUIRE(a.unlucky == b.unlucky);
}

}  // namespace

TEST_CASE("what is remembered of a replay is what the replay comes to, whatever was asked before") {
  // Replays with a limit are made each time.
  const Room boundless{}, never_reached{.limit = Bytes(std::int64_t{1} << 60)};
  for (unsigned seed = 0; seed < 400; ++seed) {
    CAPTURE(seed);
    for (std::size_t i = 0; i < changes().size(); ++i) {
      CAPTURE(i);
      DrawnRequests drawn = tests::drawn_requests(seed);
      changes()[i](drawn, seed % drawn.program.tensors.size());
      const Came made = came_to(drawn, never_reached);
      check_same(came_to(drawn, boundless), made);
      check_same(came_to(drawn, boundless), made);  // from memory
    }
  }
}

TEST_CASE("a hash tells words, their places and their order apart") {
  std::vector<RequestHash::Value> seen;
  const auto add = [&](auto what) {
    RequestHash hash;
    what(hash);
    for (const RequestHash::Value& other : seen) {
      CHECK(other[0] != hash.value()[0]);
      CHECK(other[1] != hash.value()[1]);
    }
    seen.push_back(hash.value());
  };
  add([](RequestHash&) {});
  for (const std::uint64_t a : {0, 1, 2})
    for (const std::uint64_t b : {0, 1, 2})
      for (const std::uint64_t c : {0, 1, 2}) add([&](RequestHash& hash) { hash.add(a, b, c); });
  add([](RequestHash& hash) { hash.add(1, 2, 3), hash.add(4, 5, 6); });
  add([](RequestHash& hash) { hash.add(4, 5, 6), hash.add(1, 2, 3); });
  add([](RequestHash& hash) { hash.add(std::int64_t{-1}), hash.add(std::int64_t{-1}); });
}

TEST_CASE("what was not asked for long is forgotten, what was is not") {
  const auto key = [](std::uint64_t n) { return RequestHash::Value{n, ~n}; };
  const auto remember = [&](std::uint64_t n) {
    KnownReplay replay;
    replay.needed.reserved = Bytes(static_cast<std::int64_t>(n));
    replay.unlucky = Bytes(static_cast<std::int64_t>(n) + 1);
    remember_replay(key(n), replay);
  };
  CHECK_FALSE(find_replay(key(1)));
  for (std::uint64_t n = 1; n <= 100'000; ++n) {
    remember(n);
    CHECK(find_replay(key(1)));  // asked again and again
  }
  CHECK_FALSE(find_replay(key(2)));
  REQUIRE(find_replay(key(99'999)));
  CHECK(find_replay(key(99'999))->needed.reserved == Bytes(99'999));
  CHECK(find_replay(key(99'999))->unlucky == Bytes(100'000));
}
