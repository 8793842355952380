// A launcher that ends a job sends SIGTERM to the ranks that are left, and waits a little.
#pragma once

#include <functional>
#include <thread>

namespace plimsoll::tools {

// While it lives, SIGTERM calls `then` on a thread of its own, once; the process ends with `status`
// when that has returned. One at a time in a process.
class EndedFromOutside {
 public:
  EndedFromOutside(std::function<void()> then, int status);
  ~EndedFromOutside();  // the signal does again what it did
  EndedFromOutside(const EndedFromOutside&) = delete;
  EndedFromOutside& operator=(const EndedFromOutside&) = delete;

 private:
  std::function<void()> then_;
  int status_;
  int read_ = -1;
  std::thread thread_;
};

}  // namespace plimsoll::tools
