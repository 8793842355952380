#include "tools/cli/line_reader.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "models/base/error.h"

namespace plimsoll::tools {

namespace {
constexpr std::size_t kLongestLine = 16 << 20;
}

LineReader::LineReader(const std::string& path) : path_(path) {
  descriptor_ = path == "-" ? STDIN_FILENO : ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  check(descriptor_ >= 0, ErrorKind::bad_input,
        [&] { return fmt::format("{}: {}", path, std::strerror(errno)); });
}

LineReader::~LineReader() {
  if (descriptor_ != STDIN_FILENO) ::close(descriptor_);
}

std::optional<std::string_view> LineReader::next() {
  for (std::size_t searched = at_;;) {
    const std::size_t end = buffer_.find('\n', searched);
    if (end != std::string::npos) return take(end, end + 1);
    if (ended_) {
      if (at_ == buffer_.size()) return std::nullopt;
      return take(buffer_.size(), buffer_.size());
    }
    buffer_.erase(0, at_);
    at_ = 0;
    searched = buffer_.size();
    fill();
  }
}

std::string_view LineReader::take(std::size_t end, std::size_t next) {
  std::string_view line(buffer_.data() + at_, end - at_);
  if (line.ends_with('\r')) line.remove_suffix(1);
  at_ = next;
  return line;
}

void LineReader::fill() {
  check(buffer_.size() <= kLongestLine, ErrorKind::bad_input,
        [&] { return fmt::format("{}: a line of more than 16 MiB", path_); });
  const std::size_t before = buffer_.size();
  buffer_.resize(before + (1 << 16));
  ssize_t got;
  do got = ::read(descriptor_, buffer_.data() + before, 1 << 16);
  while (got < 0 && errno == EINTR);
  check(got >= 0, ErrorKind::bad_input,
        [&] { return fmt::format("{}: {}", path_, std::strerror(errno)); });
  buffer_.resize(before + static_cast<std::size_t>(got));
  ended_ = got == 0;
}

}  // namespace plimsoll::tools
