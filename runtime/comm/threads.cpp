#include "runtime/comm/threads.h"

#include <algorithm>
#include <chrono>
#include <numeric>
#include <thread>

#include "runtime/comm/ending.h"
#include "runtime/comm/thread_group.h"

namespace plimsoll::runtime::comm {

namespace {

// How long ranks have to end after the first error: a rank that waits for others ends at once.
constexpr double kGraceSeconds = 10;

// What a rank's thread says where there is no memory left to say more.
struct Spare {
  explicit Spare(int rank) : error(no_host_memory(rank)), thrown(std::make_exception_ptr(error)) {}
  Error error;
  std::exception_ptr thrown;
};

// Only here is an exception made into the job's error; `Stopped` is never the first.
void run_rank(const std::function<void(Communicator&)>& function,
              const std::shared_ptr<ThreadGroup>& group, int rank, const Spare& spare) {
  try {
    const auto communicator = thread_communicator(group, rank);
    function(*communicator);
  } catch (const Stopped&) {
  } catch (...) {
    end_with_current_error(rank, spare.error, [&](const Error& error) {
      const std::lock_guard lock(group->job->mutex);
      group->job->fail_locked(error, spare.thrown);
    });
  }
  const std::lock_guard lock(group->job->mutex);
  ++group->job->ended;
  group->job->changed.notify_all();
}

// The ranks' threads; where one cannot be started, those that are wait for nobody.
std::vector<std::thread> start(int ranks,
                               const std::shared_ptr<std::function<void(Communicator&)>>& function,
                               const std::shared_ptr<ThreadGroup>& group) {
  std::vector<std::thread> threads;
  threads.reserve(static_cast<std::size_t>(ranks));
  std::vector<Spare> spares;
  for (int rank = 0; rank < ranks; ++rank) spares.emplace_back(rank);
  for (const Spare& spare : spares) {
    const auto rank = static_cast<int>(threads.size());
    try {
      threads.emplace_back(
          [function, group, rank, spare] { run_rank(*function, group, rank, spare); });
    } catch (...) {
      end_with_current_error(rank, spare.error, [&](const Error& error) {
        const std::lock_guard lock(group->job->mutex);
        group->job->ended += ranks - rank;
        group->job->fail_locked(error, spare.thrown);
      });
      break;
    }
  }
  return threads;
}

// True: all ranks have come back.
bool all_ended(ThreadJob& job, int ranks) {
  std::unique_lock lock(job.mutex);
  const auto ended = [&] { return job.ended == ranks; };
  job.changed.wait(lock, [&] { return job.aborted || ended(); });
  if (!job.aborted) return true;
  const double grace = std::min(job.timeout_seconds, kGraceSeconds);
  return job.changed.wait_for(lock, std::chrono::duration<double>(grace), ended);
}

}  // namespace

void run_ranks(int ranks, std::function<void(Communicator&)> function,
               const ThreadOptions& options) {
  check(ranks >= 1, ErrorKind::bad_input,
        [&] { return "--ranks " + std::to_string(ranks) + ": at least one rank"; });
  if (ranks == 1) {
    const auto single = single_communicator();
    try {
      return function(*single);
    } catch (const std::exception&) {
      throw of_rank(0, current_error());
    }
  }
  const auto job = std::make_shared<ThreadJob>();
  job->timeout_seconds = options.timeout_seconds;
  job->buffers = options.buffers;
  const auto group = std::make_shared<ThreadGroup>();
  group->job = job;
  group->ranks.resize(static_cast<std::size_t>(ranks));
  std::iota(group->ranks.begin(), group->ranks.end(), 0);
  // Shared, so that a rank that is left behind still has it.
  const auto shared = std::make_shared<std::function<void(Communicator&)>>(std::move(function));
  std::vector<std::thread> threads = start(ranks, shared, group);
  const bool ended = all_ended(*job, ranks);
  for (std::thread& thread : threads) ended ? thread.join() : thread.detach();
  const std::lock_guard lock(job->mutex);
  if (job->error) std::rethrow_exception(job->error);
  check(!job->aborted, ErrorKind::internal, "an operation was started and not waited for");
}

}  // namespace plimsoll::runtime::comm
