// Ranks as threads on a device that works later: what is queued is ordered by the places alone.
#include <doctest/doctest.h>

#include <algorithm>
#include <functional>
#include <map>
#include <mutex>
#include <numeric>
#include <vector>

#include "runtime/comm/threads.h"

namespace plimsoll::runtime::comm {
namespace {

thread_local int this_rank = 0;

// One queue for each rank; nothing is done before `execute`. A queue then goes on for as long as
// nothing that it must come after is missing: without the places one rank would run far ahead.
class Queues final : public SharedBuffers {
 public:
  Place place() override {
    auto reached = std::make_shared<bool>(false);
    ask([reached] { *reached = true; });
    return reached;
  }
  void after(const Place& place) override {
    if (place) push({.work = nullptr, .behind = std::static_pointer_cast<const bool>(place)});
  }
  void sum(std::span<const void* const> ranks, std::span<void* const> to, DType dtype,
           std::int64_t count) override {
    ask([=, from = std::vector<const void*>(ranks.begin(), ranks.end()),
         into = std::vector<void*>(to.begin(), to.end())] {
      host_buffers().sum(from, into, dtype, count);
    });
  }
  void copy(void* to, const void* from, Bytes bytes) override {
    ask([=] { host_buffers().copy(to, from, bytes); });
  }
  void ask(std::function<void()> work) { push({std::move(work), nullptr}); }

  // `first`: whose turn it is whenever it can go on. True: everything was done.
  bool execute(int first, int ranks) {
    for (bool moved = true; moved;) {
      moved = false;
      for (int i = 0; i < ranks && !moved; ++i) moved = advance(queues_[(first + i) % ranks]);
    }
    return std::all_of(queues_.begin(), queues_.end(),
                       [](const auto& queue) { return queue.second.empty(); });
  }

 private:
  struct Item {
    std::function<void()> work;
    std::shared_ptr<const bool> behind;
  };
  void push(Item item) {
    const std::lock_guard lock(mutex_);
    queues_[this_rank].push_back(std::move(item));
  }
  static bool advance(std::vector<Item>& queue) {
    std::size_t done = 0;
    for (; done < queue.size(); ++done) {
      const Item& item = queue[done];
      if (item.behind && !*item.behind) break;
      if (item.work) item.work();
    }
    queue.erase(queue.begin(), queue.begin() + static_cast<std::ptrdiff_t>(done));
    return done > 0;
  }
  std::mutex mutex_;
  std::map<int, std::vector<Item>> queues_;
};

constexpr int kRanks = 3;
constexpr std::int64_t kElements = 12;

// A rank writes its buffer before each exchange, and writes over it right behind, as ops do that
// reuse memory. What it reads in between is kept in `results`.
void exchange(Communicator& world, const std::function<void(std::function<void()>)>& ask,
              std::vector<float>& buffer, std::vector<float>& results) {
  const TensorView view{buffer.data(), DType::fp32, {kElements}};
  const auto write = [&](float base) {
    ask([&buffer, base] { std::iota(buffer.begin(), buffer.end(), base); });
  };
  const auto read = [&] {
    ask([&] { results.insert(results.end(), buffer.begin(), buffer.end()); });
  };
  const auto rank = static_cast<float>(world.rank());
  write(1 + 100 * rank);
  world.all_reduce(view);
  read();
  write(2 + 100 * rank);
  world.start_reduce_scatter(view, {1, 2}).wait();
  ask([&, own = static_cast<std::size_t>(world.rank()) * 4 + 1] {
    results.insert(results.end(), {buffer[own], buffer[own + 1]});
  });
  write(3 + 100 * rank);
  world.all_gather(view);
  read();
  write(4 + 100 * rank);
  world.broadcast(view, 1);
  read();
  write(5);
}

TEST_CASE("queued exchanges give the same values whichever rank's queue runs ahead") {
  std::vector<std::vector<float>> expected(kRanks);
  {
    std::vector<std::vector<float>> buffers(kRanks, std::vector<float>(kElements));
    run_ranks(kRanks, [&](Communicator& world) {
      const auto rank = static_cast<std::size_t>(world.rank());
      exchange(
          world, [](const auto& work) { work(); }, buffers[rank], expected[rank]);
    });
    // Element 0 of the all-reduce: 1 + 101 + 201; of the broadcast: rank 1's 104.
    CHECK(expected[2][0] == 303);
    CHECK(expected[0][expected[0].size() - kElements] == 104);
  }
  for (int first = 0; first < kRanks; ++first) {
    Queues queues;
    std::vector<std::vector<float>> buffers(kRanks, std::vector<float>(kElements)), results(kRanks);
    run_ranks(kRanks,
              [&](Communicator& world) {
                this_rank = world.rank();
                const auto rank = static_cast<std::size_t>(world.rank());
                const auto ask = [&](std::function<void()> work) { queues.ask(std::move(work)); };
                exchange(world, ask, buffers[rank], results[rank]);
              },
              {.timeout_seconds = 60, .buffers = &queues});
    CHECK(queues.execute(first, kRanks));
    CHECK(results == expected);
  }
}

TEST_CASE("a device that fails for one rank ends the job with its reason") {
  class Failing final : public SharedBuffers {
    Place place() override { return nullptr; }
    void after(const Place&) override {}
    void sum(std::span<const void* const>, std::span<void* const>, DType, std::int64_t) override {
      check(this_rank != 1, ErrorKind::device, "the device is gone");
    }
    void copy(void*, const void*, Bytes) override {}
  } failing;
  std::vector<std::vector<float>> buffers(kRanks, std::vector<float>(kElements));
  try {
    run_ranks(kRanks,
              [&](Communicator& world) {
                this_rank = world.rank();
                auto& buffer = buffers[static_cast<std::size_t>(world.rank())];
                world.all_reduce({buffer.data(), DType::fp32, {kElements}});
              },
              {.timeout_seconds = 60, .buffers = &failing});
    FAIL("a sum that failed");
  } catch (const Error& error) {
    CHECK(error.kind() == ErrorKind::device);
    CHECK(error.message() == "rank 1: the device is gone");
  }
}

}  // namespace
}  // namespace plimsoll::runtime::comm
