#include "runtime/comm/threads.h"

#include <algorithm>
#include <chrono>
#include <numeric>
#include <thread>

#include "runtime/comm/thread_group.h"

namespace plimsoll::runtime::comm {

namespace {

// How long ranks have to end after the first error: a rank that waits for others ends at once.
constexpr double kGraceSeconds = 10;

// An out-of-memory error has the rank in its message already.
Error of_rank(int rank, const Error& error) {
  const std::string prefix = "rank " + std::to_string(rank) + ": ";
  return Error(error.kind(),
               error.message().starts_with(prefix) ? error.message() : prefix + error.message(),
               error.where());
}

// Only here is an exception made into the job's error; `Stopped` is never the first.
void run_rank(const std::function<void(Communicator&)>& function,
              const std::shared_ptr<ThreadGroup>& group, int rank) {
  const auto failed = [&](const Error& error) {
    const std::lock_guard lock(group->job->mutex);
    group->job->fail_locked(of_rank(rank, error));
  };
  try {
    const auto communicator = thread_communicator(group, rank);
    function(*communicator);
  } catch (const Stopped&) {
  } catch (const Error& error) {
    failed(error);
  } catch (const std::exception& error) {
    failed(Error(ErrorKind::internal, error.what()));
  } catch (...) {
    failed(Error(ErrorKind::internal, "an exception of unknown type"));
  }
  const std::lock_guard lock(group->job->mutex);
  ++group->job->ended;
  group->job->changed.notify_all();
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
    } catch (const Error& error) {
      throw of_rank(0, error);
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
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks; ++rank)
    threads.emplace_back([shared, group, rank] { run_rank(*shared, group, rank); });

  const bool ended = all_ended(*job, ranks);
  for (std::thread& thread : threads) ended ? thread.join() : thread.detach();
  const std::lock_guard lock(job->mutex);
  if (job->error) std::rethrow_exception(job->error);
  check(!job->aborted, ErrorKind::internal, "an operation was started and not waited for");
}

}  // namespace plimsoll::runtime::comm
