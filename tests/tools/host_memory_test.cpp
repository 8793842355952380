#include "tools/cli/host_memory.h"

#include <doctest/doctest.h>

namespace plimsoll::tools {
namespace {

TEST_CASE("a host gives what is available, or what its control group allows") {
  const std::string meminfo =
      "MemTotal:       24000000 kB\nMemFree:  1 kB\nMemAvailable:   2048 kB\nBuffers: 9 kB\n";
  CHECK(available_memory(meminfo, "") == 2_MiB);
  CHECK(available_memory(meminfo, "max\n") == 2_MiB);
  CHECK(available_memory(meminfo, "1048576\n") == 1_MiB);
  CHECK(available_memory("", "1048576\n") == 1_MiB);
  CHECK_FALSE(available_memory("", "max\n"));
  CHECK_FALSE(available_memory("MemAvailable: none\n", ""));
}

// What is available changes from one look to the next: between a half and twice is near enough to
// tell 4, 8 and 16 apart where they differ by four times.
TEST_CASE("ranks of one host share its memory: all threads, of MPI's processes those of a node") {
  const std::optional<Bytes> all = host_memory();
  REQUIRE(all);
  const auto share = [](models::Exchange exchange, std::int64_t gpus, std::int64_t per_node) {
    planner::Question question;
    question.strategy.device = models::Device::cpu;
    question.strategy.exchange = exchange;
    question.strategy.gpus = gpus;
    question.strategy.gpus_per_node = per_node;
    use_host_memory(question);
    return question.cluster.memory.value_or(Bytes(0)).real();
  };
  const auto near = [&](double share, double ranks) {
    return share * ranks > all->real() / 2 && share * ranks < all->real() * 2;
  };
  CHECK(near(share(models::Exchange::threads, 32, 8), 32));
  CHECK(near(share(models::Exchange::mpi, 32, 8), 8));
  CHECK(near(share(models::Exchange::mpi, 2, 8), 2));
  CHECK(near(share(models::Exchange::mpi, 8, 8), 8));
}

}  // namespace
}  // namespace plimsoll::tools
