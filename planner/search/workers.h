// Equal work on several threads. The calling thread is one of them.
#pragma once

#include <atomic>
#include <cstddef>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace plimsoll::planner::search {

// work(i, thread) for every i below `count`, on `threads` threads; the first exception is thrown
// again when all have ended.
inline void for_each(std::size_t count, std::size_t threads,
                     const std::function<void(std::size_t, std::size_t)>& work) {
  std::atomic<std::size_t> next{0};
  std::exception_ptr failure;
  std::mutex mutex;
  const auto run = [&](std::size_t thread) {
    try {
      for (std::size_t i = next++; i < count; i = next++) work(i, thread);
    } catch (...) {
      const std::lock_guard lock(mutex);
      if (!failure) failure = std::current_exception();
      next = count;
    }
  };
  std::vector<std::thread> others;
  for (std::size_t t = 1; t < threads && t < count; ++t) others.emplace_back(run, t);
  run(0);
  for (std::thread& other : others) other.join();
  if (failure) std::rethrow_exception(failure);
}

}  // namespace plimsoll::planner::search
