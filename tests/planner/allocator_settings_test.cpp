// Settings of PYTORCH_CUDA_ALLOC_CONF: the replayed allocator against torch's own.
//
// tests/golden/allocator_histories.json: what torch reserved and allocated after each of 700 drawn
// requests and releases, with plenty of memory and near its end
// (tools/oracle/allocator_histories.py).
#include <doctest/doctest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "planner/memory/caching_allocator.h"

using namespace plimsoll;
using models::Stream;
using nlohmann::json;
using planner::CachingAllocator;

namespace {

// The first step after which the replay differs; nothing where none does.
std::optional<std::size_t> first_difference(const json& requests, const json& run,
                                            CachingAllocator& allocator) {
  std::vector<std::optional<CachingAllocator::Handle>> held;
  for (std::size_t i = 0; i < requests.size(); ++i) {
    const json& step = requests[i];
    if (step.size() == 1) {
      if (const auto handle = held[step[0]]) allocator.free(*handle);
    } else {
      const Stream stream = step[1] == 0 ? Stream::compute : Stream::gather;
      held.push_back(allocator.allocate(Bytes(step[0].get<std::int64_t>()), stream));
    }
    if (allocator.reserved().value() >> 20 != run["reserved_mib"][i] ||
        allocator.allocated().value() / 512 != run["allocated_blocks_of_512"][i])
      return i;
  }
  return std::nullopt;
}

}  // namespace

TEST_CASE("with each of its settings the allocator does what torch's does, request by request") {
  const json document = json::parse(std::ifstream(PLIMSOLL_GOLDEN "/allocator_histories.json"));
  CHECK(document["runs"].size() == 22);
  std::size_t flushed = 0;
  for (const json& run : document["runs"]) {
    const std::string conf =
        run["allocator_conf"].is_null() ? "" : run["allocator_conf"].get<std::string>();
    CAPTURE(conf);
    CAPTURE(run["capacity_bytes"].get<std::int64_t>());
    CachingAllocator allocator({.limit = Bytes(run["capacity_bytes"].get<std::int64_t>())},
                               models::allocator_conf_from(conf, "--allocator-conf"));
    const auto difference = first_difference(document["requests"], run, allocator);
    CHECK_MESSAGE(!difference, "after step ", difference.value_or(0));
    // Torch counts no retry where it gave single large segments back.
    if (conf.find("max_split_size_mb") == std::string::npos)
      CHECK(allocator.calls().flushes == run["retries"]);
    flushed += allocator.calls().flushes > 0;
  }
  CHECK(flushed == 11);
}
