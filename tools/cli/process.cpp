#include "tools/cli/process.h"

#include <pthread.h>
#include <sys/resource.h>

#include <csignal>
#include <system_error>
#include <thread>

#include "tools/cli/output.h"

namespace plimsoll::tools {

namespace {
// Linux's own limit of a main thread. Host attention holds its blocks on the stack, and a JSON
// document of 256 levels is written by as many calls.
constexpr rlim_t kUsualStack = 8 << 20;

// glibc gives a thread as much as the limit allows the main thread.
bool is_low(const rlimit& limit) {
  return limit.rlim_cur != RLIM_INFINITY && limit.rlim_cur < kUsualStack;
}
}  // namespace

int run_process(const std::function<int()>& program) {
  std::signal(SIGPIPE, SIG_IGN);
  std::signal(SIGXFSZ, SIG_IGN);
  rlimit limit{};
  if (::getrlimit(RLIMIT_STACK, &limit) != 0 || !is_low(limit)) return program();
  pthread_attr_t usual;
  ::pthread_attr_init(&usual);
  ::pthread_attr_setstacksize(&usual, kUsualStack);
  ::pthread_setattr_default_np(&usual);
  ::pthread_attr_destroy(&usual);
  int status = 3;
  try {
    std::thread([&] { status = program(); }).join();
  } catch (const std::system_error& error) {
    say(std::string("cannot start a thread: ") + error.what());
  }
  return status;
}

}  // namespace plimsoll::tools
