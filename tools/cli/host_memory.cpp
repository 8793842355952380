#include "tools/cli/host_memory.h"

#include <algorithm>
#include <charconv>
#include <fstream>
#include <sstream>

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

std::optional<Bytes> host_memory() {
  return available_memory(content("/proc/meminfo"), content("/sys/fs/cgroup/memory.max"));
}

}  // namespace plimsoll::tools
