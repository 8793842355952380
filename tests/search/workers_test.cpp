// Threads that share the items of a round.
#include "planner/search/workers.h"

#include <doctest/doctest.h>

#include <atomic>
#include <chrono>
#include <mutex>
#include <set>
#include <stdexcept>
#include <thread>
#include <vector>

using plimsoll::planner::search::Workers;

TEST_CASE("every item is done once, by one of the threads, round after round") {
  for (const std::size_t threads : {std::size_t{1}, std::size_t{2}, std::size_t{5}}) {
    Workers workers(threads);
    CHECK(workers.threads() == threads);
    for (const std::size_t count :
         {std::size_t{0}, std::size_t{1}, std::size_t{2}, std::size_t{3}, std::size_t{100}}) {
      std::vector<std::atomic<int>> done(count);
      std::atomic<bool> known_thread = true;
      workers.for_each(count, [&](std::size_t i, std::size_t thread) {
        ++done[i];
        if (thread >= threads) known_thread = false;
      });
      for (const std::atomic<int>& times : done) CHECK(times == 1);
      CHECK(known_thread);
    }
  }
}

// Each waits until the other has begun; should nobody come, not for ever.
TEST_CASE("two items are done at the same time, by two threads; one by who asks") {
  Workers workers(2);
  std::atomic<int> begun = 0;
  std::atomic<bool> together = true;
  std::mutex mutex;
  std::set<std::size_t> threads;
  workers.for_each(2, [&](std::size_t, std::size_t thread) {
    ++begun;
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(5);
    while (begun < 2 && std::chrono::steady_clock::now() < end) std::this_thread::yield();
    if (begun < 2) together = false;
    const std::lock_guard lock(mutex);
    threads.insert(thread);
  });
  CHECK(together);
  CHECK(threads == std::set<std::size_t>{0, 1});
  const std::thread::id asking = std::this_thread::get_id();
  for (int round = 0; round < 50; ++round)
    workers.for_each(1, [&](std::size_t, std::size_t thread) {
      CHECK(thread == 0);
      CHECK(std::this_thread::get_id() == asking);
    });
}

TEST_CASE("the first exception ends the round, and the next one begins as if nothing had been") {
  for (const std::size_t threads : {std::size_t{1}, std::size_t{3}}) {
    Workers workers(threads);
    std::atomic<int> done = 0;
    const auto fails = [&](std::size_t i, std::size_t) {
      if (i == 3) throw std::runtime_error("three");
      ++done;
    };
    CHECK_THROWS_WITH_AS(workers.for_each(1000, fails), "three", std::runtime_error);
    if (threads == 1) CHECK(done == 3);
    done = 0;
    workers.for_each(3, fails);
    CHECK(done == 3);
  }
}
