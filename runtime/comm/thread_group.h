// What ranks that are threads share.
#pragma once

#include <condition_variable>
#include <exception>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "runtime/comm/communicator.h"
#include "runtime/comm/shared_buffers.h"

namespace plimsoll::runtime::comm {

// A rank that stops because another one has failed: never the error that is reported.
class Stopped final : public Error {
 public:
  explicit Stopped(const std::string& why)
      : Error(ErrorKind::communicator, "stopped, because another rank has failed: " + why) {}
};

// One for the world and all groups split from it. Everything, the groups' included, is guarded by
// the mutex.
struct ThreadJob {
  std::mutex mutex;
  std::condition_variable changed;
  double timeout_seconds = 0;
  SharedBuffers* buffers = nullptr;
  bool aborted = false;
  std::string reason;  // of the first failure; empty: a rank fails that has not said why yet
  std::exception_ptr error;  // and the error that the job ends with
  int ended = 0;  // ranks that have come back

  // Ends the job with `why` or, where there is no memory for it, with `spare`, made before.
  void fail_locked(const Error& why, const std::exception_ptr& spare = nullptr) noexcept;
};

// What one rank brings to an operation.
struct Call {
  const char* what = nullptr;  // null: the rank has not come yet
  ConstTensorView from;
  TensorView to;
  std::int64_t detail = 0;  // a root, a range: equal on all ranks
  std::string bytes;
  SharedBuffers::Place ready;  // behind it the rank's buffers are what the operation reads
};

// One operation of a group.
struct Exchange {
  std::vector<Call> calls;
  std::vector<bool> done;
  std::vector<SharedBuffers::Place> used;  // behind it the rank uses nobody's buffers any more
  std::size_t here = 0, finished = 0, left = 0;
  int reading = 0;  // ranks that use the buffers
};

struct ThreadGroup {
  std::shared_ptr<ThreadJob> job;
  std::vector<int> ranks;  // of the world
  std::map<std::uint64_t, Exchange> exchanges;
  std::map<std::pair<std::uint64_t, int>, std::shared_ptr<ThreadGroup>> split;  // operation, color
};

std::unique_ptr<Communicator> thread_communicator(std::shared_ptr<ThreadGroup> group, int rank);

}  // namespace plimsoll::runtime::comm
