// What is under way on a GPU's side streams, and who ends the process when it does not end.
#pragma once

#include <nccl.h>

#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "runtime/comm/nccl_ranks.h"
#include "runtime/stream.h"

namespace plimsoll::runtime::comm {

void expect_nccl(ncclResult_t result, const char* what);

class Watchdog {
 public:
  // `control` outlives it.
  Watchdog(int rank, int device, Control& control, const NcclOptions& options);
  ~Watchdog();
  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;

  void add(ncclComm_t communicator);
  void remove(ncclComm_t communicator);
  void watch(const char* what, std::shared_ptr<const Event> done);
  // A call that blocks the rank's thread is under way from its beginning to its end.
  class Call {
   public:
    Call(Watchdog& dog, const char* what) : dog_(dog) { dog_.begin_call(what); }
    ~Call() { dog_.begin_call(nullptr); }
    Call(const Call&) = delete;
    Call& operator=(const Call&) = delete;

   private:
    Watchdog& dog_;
  };
  // NCCL's kernels give up, and what waits for them on the stream goes on.
  void abort_communicators() noexcept;
  // Reports, tells the others, and ends the process.
  [[noreturn]] void end_process(const Error& error) noexcept;

 private:
  struct Operation {
    const char* what;
    std::shared_ptr<const Event> done;
    std::chrono::steady_clock::time_point began;
  };
  void begin_call(const char* what);
  void run(int device);
  std::string failure();  // "" while all is well

  int rank_;
  Control& control_;
  NcclOptions options_;
  std::mutex mutex_;
  std::condition_variable stop_;
  bool stopping_ = false;
  std::vector<ncclComm_t> communicators_;
  std::vector<Operation> operations_;
  const char* call_ = nullptr;
  std::chrono::steady_clock::time_point call_began_;
  std::thread thread_;
};

}  // namespace plimsoll::runtime::comm
