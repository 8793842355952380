// Equal work on several threads, which stay from one round to the next: what they know of a search
// (thread_local in planner/) stays with them. The calling thread is one of them.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace plimsoll::planner::search {

class Workers {
 public:
  explicit Workers(std::size_t threads);
  ~Workers();
  Workers(const Workers&) = delete;
  Workers& operator=(const Workers&) = delete;

  using Work = std::function<void(std::size_t, std::size_t)>;
  // work(i, thread) for every i below `count`; the first exception is thrown again when all have
  // ended. Not to be called from within.
  void for_each(std::size_t count, const Work& work);
  std::size_t threads() const { return others_.size() + 1; }

 private:
  void wait_for_work(std::size_t thread);
  void run(std::size_t thread);

  std::mutex mutex_;
  std::condition_variable begin_, end_;
  const Work* work_ = nullptr;  // the four belong to the mutex
  std::size_t count_ = 0, next_ = 0;
  std::size_t round_ = 0, busy_ = 0;
  bool stops_ = false;
  std::exception_ptr failure_;
  std::vector<std::thread> others_;
};

}  // namespace plimsoll::planner::search
