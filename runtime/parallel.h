// Work of the host that is the same for every part of a range, on all cores.
#pragma once

#include <algorithm>
#include <cstdint>
#include <future>
#include <thread>
#include <vector>

namespace plimsoll::runtime {

// work(first, count) for parts of [0, n) that begin at multiples of 4 and are `least` long or more:
// at once, where there are several. An error of one is thrown when all have ended.
template <class Work>
void in_parts(std::int64_t n, std::int64_t least, Work work) {
  const std::int64_t cores = std::max(1u, std::thread::hardware_concurrency());
  const std::int64_t parts = std::clamp<std::int64_t>(n / least, 1, cores);
  const std::int64_t length = (n / parts + 4) / 4 * 4;
  std::vector<std::future<void>> others;
  for (std::int64_t first = length; first < n; first += length)
    others.push_back(std::async(std::launch::async, work, first, std::min(length, n - first)));
  work(0, std::min(length, n));
  for (std::future<void>& other : others) other.get();
}

}  // namespace plimsoll::runtime
