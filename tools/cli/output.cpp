#include "tools/cli/output.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <new>

#include "models/base/file_error.h"

namespace plimsoll::tools {

namespace {
// 0, or the errno of the write that failed.
int write_all(int descriptor, std::string_view text) {
  while (!text.empty()) {
    const ssize_t written = ::write(descriptor, text.data(), text.size());
    if (written < 0) {
      if (errno == EINTR) continue;
      return errno;
    }
    text.remove_prefix(static_cast<std::size_t>(written));
  }
  return 0;
}

bool is_utf8_locale() {
  for (const char* name : {"LC_ALL", "LC_CTYPE", "LANG"}) {
    const char* value = std::getenv(name);
    if (value == nullptr || *value == '\0') continue;
    const std::string_view locale = value;
    for (const char* spelling : {"UTF-8", "utf-8", "UTF8", "utf8"})
      if (locale.find(spelling) != std::string_view::npos) return true;
    return false;
  }
  return false;
}

bool is_set(const char* name) {
  const char* value = std::getenv(name);
  return value != nullptr && *value != '\0';
}
}  // namespace

bool print(std::string_view text) {
  const int error = write_all(STDOUT_FILENO, text);
  if (error == EPIPE) return false;
  check(error == 0, ErrorKind::internal,
        [&] { return fmt::format("cannot write to standard output: {}", std::strerror(error)); });
  return true;
}

void say(std::string_view message) {
  try {
    std::string text = "plimsoll: ";
    for (std::size_t begin = 0; begin <= message.size();) {
      const std::size_t end = std::min(message.find('\n', begin), message.size());
      if (end > begin || begin == 0)
        text += reports::printable(message.substr(begin, end - begin)) + "\n";
      begin = end + 1;
    }
    (void)write_all(STDERR_FILENO, text);
  } catch (const std::bad_alloc&) {  // it is often the memory that is spoken of
    (void)write_all(STDERR_FILENO, "plimsoll: out of host memory\n");
  }
}

reports::Terminal standard_output_terminal() {
  const char* term = std::getenv("TERM");
  const bool dumb = term != nullptr && std::string_view(term) == "dumb";
  return {.colour = ::isatty(STDOUT_FILENO) == 1 && !is_set("NO_COLOR") && !dumb,
          .utf8 = is_utf8_locale()};
}

AtomicFile::AtomicFile(std::string path, std::string option)
    : path_(std::move(path)), option_(std::move(option)) {
  namespace fs = std::filesystem;
  std::error_code error;
  // A link is followed: its target is replaced, not the link.
  const fs::path target = fs::weakly_canonical(path_, error);
  if (!error && fs::exists(target, error)) path_ = target.string();
  struct stat status {};
  const bool there = ::stat(path_.c_str(), &status) == 0;
  if (there && !S_ISREG(status.st_mode)) {
    descriptor_ = ::open(path_.c_str(), O_WRONLY | O_CLOEXEC);
  } else {
    temporary_ = fmt::format("{}.{}.tmp", path_, ::getpid());
    const mode_t mode = there ? status.st_mode & 07777 : 0666;
    descriptor_ = ::open(temporary_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, mode);
  }
  if (descriptor_ < 0) fail_with_errno("cannot be written");
}

AtomicFile::~AtomicFile() {
  if (descriptor_ < 0) return;
  ::close(descriptor_);
  if (!temporary_.empty()) ::unlink(temporary_.c_str());
}

void AtomicFile::write(std::string_view text) {
  if (const int error = write_all(descriptor_, text); error != 0) {
    errno = error;
    fail_with_errno("cannot be written");
  }
}

void AtomicFile::commit() {
  const int descriptor = std::exchange(descriptor_, -1);
  const bool flushed = temporary_.empty() || ::fsync(descriptor) == 0 || errno == EINVAL;
  const int sync_error = errno;
  const bool closed = ::close(descriptor) == 0;
  if (!flushed) errno = sync_error;
  const bool renamed =
      flushed && closed && (temporary_.empty() || ::rename(temporary_.c_str(), path_.c_str()) == 0);
  if (renamed) return;
  const int error = errno;
  if (!temporary_.empty()) ::unlink(temporary_.c_str());
  errno = error;
  fail_with_errno("cannot be written");
}

void AtomicFile::fail_with_errno(const char* what) {
  const int error = errno;
  fail(kind_of_write_failure(error),
       fmt::format("{} {}: {}: {}", option_, path_, what, std::strerror(error)));
}

}  // namespace plimsoll::tools
