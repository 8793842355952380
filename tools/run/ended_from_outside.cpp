#include "tools/run/ended_from_outside.h"

#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdlib>

#include "models/base/error.h"

namespace plimsoll::tools {

namespace {

// A handler may do little more than write: the thread behind the pipe does the rest.
std::atomic<int> write_end{-1};

void on_signal(int) {
  const int saved = errno;
  const char byte = 1;
  const int to = write_end.load();
  if (to >= 0 && ::write(to, &byte, 1) < 0) {  // nobody to tell
  }
  errno = saved;
}

}  // namespace

EndedFromOutside::EndedFromOutside(std::function<void()> then, int status)
    : then_(std::move(then)), status_(status) {
  std::array<int, 2> ends{};
  check(::pipe2(ends.data(), O_CLOEXEC) == 0, ErrorKind::internal, "no pipe for a signal");
  read_ = ends[0];
  write_end = ends[1];
  std::signal(SIGTERM, on_signal);
  thread_ = std::thread([this] {
    char byte = 0;
    ssize_t got = 0;
    while ((got = ::read(read_, &byte, 1)) < 0 && errno == EINTR) {
    }
    if (got <= 0) return;
    then_();
    std::_Exit(status_);
  });
}

EndedFromOutside::~EndedFromOutside() {
  std::signal(SIGTERM, SIG_DFL);
  ::close(write_end.exchange(-1));
  thread_.join();
  ::close(read_);
}

}  // namespace plimsoll::tools
