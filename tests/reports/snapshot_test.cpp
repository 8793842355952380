#include <doctest/doctest.h>

#include <algorithm>
#include <string>

#include "models/base/error.h"
#include "reports/snapshot/allocation_history.h"
#include "reports/snapshot/life_join.h"
#include "reports/snapshot/pickle_reader.h"
#include "reports/snapshot/snapshot_stack.h"
#include "reports/snapshot/step_window.h"

using namespace plimsoll;
using namespace plimsoll::reports;
using namespace std::string_literals;

namespace {
std::string refusal(const std::string& content) {
  try {
    read_pickle(content, "s.pickle");
  } catch (const Error& error) {
    CHECK(error.kind() == ErrorKind::bad_input);
    return error.message();
  }
  return "";
}

constexpr auto kAlloc = SnapshotEvent::Action::alloc;
constexpr auto kRequested = SnapshotEvent::Action::free_requested;
constexpr auto kCompleted = SnapshotEvent::Action::free_completed;
constexpr auto kSegment = SnapshotEvent::Action::segment_alloc;
}  // namespace

TEST_CASE("a pickle's values are read, and what it refers to twice stands once") {
  // pickletools.dis: {'a': [1, -2, 300, True, None], 'b': <the same list>}, put together by hand.
  const std::string text =
      "\x80\x04}(\x8c\x01"
      "a](K\x01J\xfe\xff\xff\xffM\x2c\x01\x88N"
      "e\x94\x8c\x01"
      "bh\x00u."s;
  const Pickle pickle = read_pickle(text, "s.pickle");
  const auto a = pickle.find(pickle.root(), "a"), b = pickle.find(pickle.root(), "b");
  REQUIRE(a);
  CHECK(a == b);
  CHECK_FALSE(pickle.find(pickle.root(), "c"));
  const auto items = pickle.items(*a);
  REQUIRE(items.size() == 5);
  CHECK(pickle.integer(items[0]) == 1);
  CHECK(pickle.integer(items[1]) == -2);
  CHECK(pickle.integer(items[2]) == 300);
  CHECK(pickle.kind(items[3]) == Pickle::Kind::truth);
  CHECK(pickle.kind(items[4]) == Pickle::Kind::none);
}

// Protocol 2 numbers what it refers to, and may give a number again.
TEST_CASE("what is remembered last under a number is what it refers to") {
  const std::string text =
      "\x80\x04}(\x8c\x01"
      "a](K\x05q\x00K\x06q\x00h\x00"
      "eu."s;
  const Pickle pickle = read_pickle(text, "s.pickle");
  const auto items = pickle.items(*pickle.find(pickle.root(), "a"));
  REQUIRE(items.size() == 3);
  CHECK(pickle.integer(items[0]) == 5);
  CHECK(pickle.integer(items[1]) == 6);
  CHECK(pickle.integer(items[2]) == 6);
}

TEST_CASE("integers of any length are read, beyond 64 bits as the nearest that there is") {
  const auto integer = [](const std::string& bytes) {
    const std::string text = "\x80\x02\x8a"s + static_cast<char>(bytes.size()) + bytes + ".";
    const Pickle pickle = read_pickle(text, "s.pickle");
    return pickle.integer(pickle.root());
  };
  CHECK(integer("") == 0);
  CHECK(integer("\xff"s) == -1);
  CHECK(integer("\xff\x00"s) == 255);
  CHECK(integer(std::string(8, '\0')) == 0);
  CHECK(integer("\x01"s + std::string(7, '\0')) == 1);
  CHECK(integer("\x00\x00\x00\x00\x00\x30"s) == 0x300000000000);
  CHECK(integer("\xff\xff\xff\xff\xff\xff\xff\xff\x00"s) == INT64_MAX);  // 2^64 - 1
  CHECK(integer("\x00\x00\x00\x00\x00\x00\x00\x00\xff"s) == INT64_MIN);  // -2^64
}

TEST_CASE("a pickle that is none, is cut, or wants something run is refused with its offset") {
  CHECK(refusal("{}").find("no pickle") != std::string::npos);
  CHECK(refusal("\x80\x04(lp0\n.").find("offset 3: opcode LIST") != std::string::npos);
  CHECK(refusal("\x80\x02"
                "cos\nsystem\n.")
            .find("offset 2: opcode GLOBAL") != std::string::npos);
  CHECK(refusal("\x80\x04").find("no pickle") != std::string::npos);
  CHECK(refusal("\x80\x04X\xff\xff\xff\x7f..").find("cut off") != std::string::npos);
  CHECK(refusal("\x80\x04h\x00."s).find("not read") != std::string::npos);
  CHECK(refusal("\x80\x04"
                "e.")
            .find("mark") != std::string::npos);
  CHECK(refusal("\x80\x04(N.").find("within a value") != std::string::npos);
  CHECK(refusal("\x80\x04N(a.").find("not there") != std::string::npos);
  CHECK(refusal("\x80\x04}(Nu.").find("without a value") != std::string::npos);
}

TEST_CASE("what the allocator held follows from the end, backwards and forwards again") {
  MemorySnapshot snapshot;
  snapshot.source = "s.pickle";
  snapshot.stacks.emplace_back();
  // A segment of 20 MiB at 0x1000: 3 MiB from before the history stay; then 10 MiB, whose rest of
  // 7 MiB is split off; 6.5 MiB in that, whose rest of half a MiB is not (CUDACachingAllocator.cpp,
  // should_split: more than 1 MiB); 10 MiB are given back.
  const std::int64_t at = 0x1000, mib = 1 << 20;
  snapshot.segments.push_back({at,
                               20_MiB,
                               false,
                               false,
                               {{at, 3_MiB, 3_MiB, true, true, 0},
                                {at + 3 * mib, 10_MiB, 10_MiB, false, false, 0},
                                {at + 13 * mib, 7_MiB, 6_MiB + 512_KiB, true, true, 0}}});
  snapshot.events = {{kSegment, at + 100 * mib, 2_MiB, 0},
                     {kAlloc, at + 3 * mib, 10_MiB, 0},
                     {kAlloc, at + 13 * mib, 6_MiB + 512_KiB, 0},
                     {kRequested, at + 3 * mib, 10_MiB, 0},
                     {kCompleted, at + 3 * mib, 10_MiB, 0}};
  snapshot.segments.push_back({at + 100 * mib, 2_MiB, true, false, {}});
  const AllocationHistory history = history_of(snapshot);
  CHECK(history.allocated_before == 3_MiB);
  CHECK(history.reserved_before == 20_MiB);
  CHECK(history.allocated == std::vector{3_MiB, 13_MiB, 20_MiB, 10_MiB, 10_MiB});
  CHECK(history.reserved == std::vector{22_MiB, 22_MiB, 22_MiB, 22_MiB, 22_MiB});
  REQUIRE(history.allocations.size() == 3);
  CHECK(history.allocations[1].born == 1);
  CHECK(history.allocations[1].died == 3);
  CHECK(history.allocations[2].died == 5);  // stays
  snapshot.events.push_back({kRequested, at + 3 * mib, 10_MiB, 0});
  CHECK_THROWS_AS(history_of(snapshot), Error);
}

TEST_CASE("an expandable segment comes and goes in parts") {
  const std::int64_t at = 0x200000, mib = 1 << 20;
  MemorySnapshot snapshot;
  snapshot.source = "s.pickle";
  snapshot.stacks.emplace_back();
  // 4 MiB, mapped at once, are two ranges at the end; 1 MiB behind them came later.
  snapshot.segments.push_back({at, 2_MiB, false, true, {}});
  snapshot.segments.push_back({at + 2 * mib, 3_MiB, false, true, {}});
  snapshot.events = {{kSegment, at, 4_MiB, 0}, {kSegment, at + 4 * mib, 1_MiB, 0}};
  const AllocationHistory history = history_of(snapshot);
  CHECK(history.reserved_before == Bytes(0));
  CHECK(history.reserved == std::vector{4_MiB, 5_MiB});
  snapshot.segments[1] = {at + 3 * mib, 2_MiB, false, true, {}};  // a gap where 4 MiB were mapped
  CHECK_THROWS_WITH_AS((void)history_of(snapshot), doctest::Contains("a segment that is not there"),
                       Error);
}

TEST_CASE("the last whole step is found between what is allocated before and after it") {
  // Three steps of 4, 2 and 2 KiB, the second larger by a tensor of 1 KiB; 8 KiB stay.
  AllocationHistory history;
  history.allocated_before = 8_KiB;
  const auto add = [&](Bytes size, bool free) {
    const Bytes last =
        history.allocated.empty() ? history.allocated_before : history.allocated.back();
    if (!free)
      history.allocations.push_back(
          {size, size, static_cast<std::int64_t>(history.allocated.size()), 1000, 0});
    history.allocated.push_back(free ? last - size : last + size);
  };
  for (int step = 0; step < 3; ++step) {
    for (const Bytes size : {4_KiB, 2_KiB, 2_KiB}) add(size, false);
    if (step == 1) add(1_KiB, false), add(1_KiB, true);
    for (const Bytes size : {2_KiB, 2_KiB, 4_KiB}) add(size, true);
  }
  history.reserved.resize(history.allocated.size());
  const std::int64_t sizes[] = {4096, 2048, 2048};
  const auto window = step_window(history, sizes);
  REQUIRE(window);
  // 6 events, 8 events, 6 events: the third step is 14 to 19.
  CHECK(window->begin == 13);
  CHECK(window->end == 19);
  const std::int64_t others[] = {4096, 1 << 20};
  CHECK_FALSE(step_window(history, others));
}

TEST_CASE("of equal sizes those that live at the same time are one") {
  // Three of 512 planned at ops 10, 20 and 30 of 100; four measured, the extra one between the last
  // two by the events, 70 for each op's 7; a size that occurs once each tells the time.
  std::vector<Life> planned, measured;
  for (const std::int64_t op : {0, 50, 99}) planned.push_back({4096 + op * 512, op, op + 1});
  for (const std::int64_t op : {0, 50, 99})
    measured.push_back({4096 + op * 512, 7 * op, 7 * op + 7});
  for (const std::int64_t op : {10, 20, 30}) planned.push_back({512, op, 90});
  for (const std::int64_t op : {10, 20, 75, 30})
    measured.push_back({512, 7 * op, op == 75 ? 7 * 76 : 7 * 90});
  std::swap(measured[5], measured[6]);  // in the order of births: 10, 20, 30, 75
  const JoinedLives joined = join_lives(planned, measured, 100, 0, 700);
  std::vector<std::pair<std::size_t, std::size_t>> pairs = joined.pairs;
  std::sort(pairs.begin(), pairs.end());
  CHECK(pairs == std::vector<std::pair<std::size_t, std::size_t>>{
                     {0, 0}, {1, 1}, {2, 2}, {3, 3}, {4, 4}, {5, 5}});
  CHECK(joined.scratch == std::vector<std::size_t>{6});  // of one op
}

// More than a table of 2^24 cells would hold; the extra one is born long before the step's others.
TEST_CASE("of too many that are as large each takes the next that is near") {
  constexpr std::int64_t kMany = 5000;
  std::vector<Life> planned, measured{{512, 0, 1}};
  for (std::int64_t i = 0; i < kMany; ++i) planned.push_back({512, 3 * kMany + i, 4 * kMany + i});
  for (std::int64_t i = 0; i < kMany; ++i) measured.push_back({512, 3 * kMany + i, 4 * kMany + i});
  const JoinedLives joined = join_lives(planned, measured, 5 * kMany, 0, 5 * kMany);
  REQUIRE(joined.pairs.size() == kMany);
  CHECK(std::ranges::all_of(joined.pairs,
                            [](const auto& pair) { return pair.second == pair.first + 1; }));
}

// One planned at op 20 of 100; two measured, of which the nearer is of another phase: a tenth of
// the step stands against one hundredth.
TEST_CASE("of two that are as large the one of the planned phase is taken") {
  using Phase = SnapshotStack::Phase;
  const Life planned[] = {{4096, 0, 100}, {512, 20, 90, false, Phase::forward}};
  std::vector<Life> measured{{4096, 0, 700},
                             {512, 7 * 21, 7 * 90, false, Phase::backward},
                             {512, 7 * 22, 7 * 90, false, Phase::forward}};
  const auto pairs = [&] { return join_lives(planned, measured, 100, 0, 700).pairs; };
  using Pairs = std::vector<std::pair<std::size_t, std::size_t>>;
  CHECK(pairs() == Pairs{{1, 2}, {0, 0}});
  measured[1].phase = Phase::unknown;  // then its moment alone counts
  CHECK(pairs() == Pairs{{1, 1}, {0, 0}});
}

TEST_CASE("what a plan takes together is found piece by piece") {
  const Life whole{3072, 10, 40};
  const Life parts[] = {{1024, 100, 400}, {1536, 101, 400}, {512, 102, 400}, {512, 500, 900}};
  const JoinedLives joined = join_lives({&whole, 1}, parts, 100, 0, 1000);
  REQUIRE(joined.parts.size() == 1);
  CHECK(joined.parts[0].second == std::vector<std::size_t>{0, 1, 2});
}

TEST_CASE("a stack is its innermost line of the user's own, the operator and the phase") {
  const SnapshotFrame frames[] = {
      {"at::_ops::clone::call", "??", 0},
      {"forward", "site-packages/torch/nn/modules/linear.py", 134},
      {"keep", "/home/x/train.py", 42},
      {"main", "/home/x/train.py", 90},
  };
  const SnapshotStack stack = read_stack(frames);
  CHECK(stack.where == "train.py:42 keep, clone");
  CHECK(stack.phase == SnapshotStack::Phase::forward);
  CHECK_FALSE(stack.own);
  const SnapshotFrame backward[] = {{"at::_ops::mm::redispatch", "", 0},
                                    {"torch::autograd::generated::MmBackward0::apply(std)", "", 0}};
  CHECK(read_stack(backward).where == "MmBackward0");
  CHECK(read_stack(backward).phase == SnapshotStack::Phase::backward);
  const SnapshotFrame step[] = {{"_foreach_sqrt", "/x/site-packages/torch/optim/adam.py", 1}};
  CHECK(read_stack(step).phase == SnapshotStack::Phase::optimizer);
  CHECK(read_stack({}).where.empty());
}

// CUDACachingAllocator.cpp, round_size: whole multiples of 512 bytes (kMinBlockSize), one at least.
TEST_CASE("a request's size is that of its block, in multiples of 512 bytes") {
  CHECK(size_class(0_B) == 512);
  CHECK(size_class(1_B) == 512);
  CHECK(size_class(512_B) == 512);
  CHECK(size_class(513_B) == 1024);
  CHECK(size_class(3_MiB) == 3 << 20);
}
