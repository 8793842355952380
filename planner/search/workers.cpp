#include "planner/search/workers.h"

#include <utility>

namespace plimsoll::planner::search {

Workers::Workers(std::size_t threads) {
  for (std::size_t t = 1; t < threads; ++t) others_.emplace_back([this, t] { wait_for_work(t); });
}

Workers::~Workers() {
  {
    const std::lock_guard lock(mutex_);
    stops_ = true;
  }
  begin_.notify_all();
  for (std::thread& other : others_) other.join();
}

void Workers::wait_for_work(std::size_t thread) {
  std::size_t seen = 0;
  while (true) {
    {
      std::unique_lock lock(mutex_);
      begin_.wait(lock, [&] { return stops_ || round_ != seen; });
      if (stops_) return;
      seen = round_;
    }
    run(thread);
    const std::lock_guard lock(mutex_);
    if (--busy_ == 0) end_.notify_one();
  }
}

void Workers::run(std::size_t thread) {
  while (true) {
    std::size_t i = 0;
    {
      const std::lock_guard lock(mutex_);
      if (next_ >= count_) return;
      i = next_++;
    }
    try {
      (*work_)(i, thread);
    } catch (...) {
      const std::lock_guard lock(mutex_);
      if (!failure_) failure_ = std::current_exception();
      next_ = count_;
    }
  }
}

void Workers::for_each(std::size_t count, const Work& work) {
  const bool shared = count > 1 && !others_.empty();
  {
    const std::lock_guard lock(mutex_);
    work_ = &work;
    count_ = count;
    next_ = 0;
    busy_ = shared ? others_.size() : 0;
    if (shared) ++round_;
  }
  if (shared) begin_.notify_all();
  run(0);
  std::unique_lock lock(mutex_);
  end_.wait(lock, [&] { return busy_ == 0; });
  if (failure_) std::rethrow_exception(std::exchange(failure_, nullptr));
}

}  // namespace plimsoll::planner::search
