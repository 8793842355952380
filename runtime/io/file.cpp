#include "runtime/io/file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>

#include "models/base/file_error.h"

namespace plimsoll::runtime::io {

namespace {
// read(2) and write(2) take at most 2 GiB at once on Linux.
constexpr std::size_t kMostAtOnce = std::size_t{1} << 30;
}  // namespace

InputFile::InputFile(const std::filesystem::path& path) : path_(path.string()) {
  // Not to wait for ever where the name is a pipe's.
  descriptor_ = ::open(path_.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  check(descriptor_ >= 0, ErrorKind::bad_input,
        [&] { return path_ + ": " + std::strerror(errno); });
  struct stat status {};
  const bool known = ::fstat(descriptor_, &status) == 0;
  if (!known || !S_ISREG(status.st_mode)) {
    ::close(descriptor_);
    fail(ErrorKind::bad_input, path_ + ": not a regular file");
  }
  size_ = status.st_size;
}

InputFile::InputFile(InputFile&& other) noexcept
    : path_(std::move(other.path_)), descriptor_(other.descriptor_), size_(other.size_) {
  other.descriptor_ = -1;
}

InputFile::~InputFile() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

void InputFile::read(std::int64_t at, std::span<std::byte> into) const {
  while (!into.empty()) {
    const ssize_t got = ::pread(descriptor_, into.data(), std::min(into.size(), kMostAtOnce), at);
    if (got < 0 && errno == EINTR) continue;
    check(got >= 0, ErrorKind::bad_input, [&] { return path_ + ": " + std::strerror(errno); });
    check(got > 0, ErrorKind::bad_input, [&] {
      return path_ + ": truncated: it ends at byte " + std::to_string(at) + ", " +
             std::to_string(into.size()) + " more are needed";
    });
    at += got;
    into = into.subspan(static_cast<std::size_t>(got));
  }
}

OutputFile::OutputFile(const std::filesystem::path& path)
    : path_(path.string()), unfinished_(path_ + ".unfinished-" + std::to_string(::getpid())) {
  descriptor_ = ::open(unfinished_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
  if (descriptor_ < 0) refuse(errno);
}

OutputFile::~OutputFile() {
  if (descriptor_ < 0) return;
  ::close(descriptor_);
  ::unlink(unfinished_.c_str());
}

void OutputFile::refuse(int error) const {
  fail(kind_of_write_failure(error), path_ + ": cannot be written: " + std::strerror(error));
}

void OutputFile::write(std::int64_t at, std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t put =
        ::pwrite(descriptor_, bytes.data(), std::min(bytes.size(), kMostAtOnce), at);
    if (put < 0 && errno == EINTR) continue;
    if (put <= 0) refuse(put < 0 ? errno : EIO);
    at += put;
    bytes = bytes.subspan(static_cast<std::size_t>(put));
  }
}

void OutputFile::finish() {
  // A full disk may only show here.
  int error = ::fsync(descriptor_) == 0 ? 0 : errno;
  if (::close(descriptor_) != 0 && error == 0) error = errno;
  descriptor_ = -1;
  if (error == 0 && std::rename(unfinished_.c_str(), path_.c_str()) == 0) return;
  if (error == 0) error = errno;
  ::unlink(unfinished_.c_str());
  refuse(error);
}

}  // namespace plimsoll::runtime::io
