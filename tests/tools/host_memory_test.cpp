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

}  // namespace
}  // namespace plimsoll::tools
