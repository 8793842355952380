#include "tools/cli/host_memory.h"

#include <sys/resource.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <fstream>
#include <limits>
#include <sstream>
#include <thread>

#include "models/decisions/mesh.h"

namespace plimsoll::tools {

namespace {

std::optional<std::int64_t> number_in(std::string_view text) {
  const auto digit = text.find_first_of("0123456789");
  if (digit == std::string_view::npos) return std::nullopt;
  std::int64_t value = 0;
  const auto end = std::from_chars(text.data() + digit, text.data() + text.size(), value);
  if (end.ec != std::errc()) return std::nullopt;
  return value;
}

std::string content(const char* path) {
  std::ifstream file(path);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

}  // namespace

std::optional<Bytes> available_memory(const std::string& meminfo, const std::string& limit) {
  std::optional<Bytes> available;
  if (const auto at = meminfo.find("MemAvailable:"); at != std::string::npos)
    if (const auto kib =
            number_in(std::string_view(meminfo).substr(at, meminfo.find('\n', at) - at)))
      available = Bytes(*kib) * 1024;
  if (const auto most = number_in(limit))
    available = available ? std::min(*available, Bytes(*most)) : Bytes(*most);
  return available;
}

std::optional<Bytes> host_addresses(std::int64_t ranks) {
  // OpenBLAS maps a buffer for each of its threads and for each that calls it, and asks again for
  // ever where it gets none (driver/others/memory.c: BUFFER_SIZE, alloc_malloc; here 32 << 22).
  constexpr Bytes kBlasBuffer = 128_MiB;
  // A rank's arena reserves 64 MiB at least (runtime/arena.cpp). The rest is what the
  // loader maps for plimsoll-run, and the heaps of its threads.
  constexpr Bytes kProgram = 160_MiB, kArena = 64_MiB;
  rlimit limit{};
  if (::getrlimit(RLIMIT_AS, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return std::nullopt;
  std::int64_t threads = std::max(1u, std::thread::hardware_concurrency());
  if (const char* given = std::getenv("OPENBLAS_NUM_THREADS"))
    if (const auto most = number_in(given); most && *most >= 1) threads = std::min(threads, *most);
  const auto all = static_cast<std::int64_t>(
      std::min<rlim_t>(limit.rlim_cur, std::numeric_limits<std::int64_t>::max()));
  return Bytes(all) - kProgram - kBlasBuffer * (threads - 1 + ranks) - kArena * ranks;
}

std::optional<Bytes> host_memory() {
  return available_memory(content("/proc/meminfo"), content("/sys/fs/cgroup/memory.max"));
}

void use_host_memory(planner::Question& question) {
  const models::Strategy& s = question.strategy;
  if (s.device != models::Device::cpu || question.cluster.memory) return;
  // Threads are all in one process; of processes a host has a node's.
  const models::decisions::Mesh mesh = models::decisions::mesh_of(s);
  const std::int64_t ranks =
      s.exchange == models::Exchange::mpi ? mesh.ranks_in_node() : mesh.ranks();
  if (const std::optional<Bytes> memory = host_memory())
    question.cluster.memory = Bytes(memory->value() / ranks);
}

}  // namespace plimsoll::tools
