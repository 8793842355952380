#include "runtime/comm/nccl_watchdog.h"

#include <cuda_runtime.h>
#include <fmt/format.h>

#include <cstdlib>

#include "runtime/comm/nccl_library.h"

namespace plimsoll::runtime::comm {

namespace {

using Clock = std::chrono::steady_clock;
constexpr std::chrono::milliseconds kPeriod(200);
constexpr std::chrono::seconds kGrace(10);  // for NCCL to give up before the process ends anyway

double seconds_since(Clock::time_point began) {
  return std::chrono::duration<double>(Clock::now() - began).count();
}

}  // namespace

void expect_nccl(ncclResult_t result, const char* what) {
  check(result == ncclSuccess, ErrorKind::communicator, [&] {
    return std::string(what) + ": NCCL: " + nccl::get_error_string(result) + " (" +
           nccl::get_last_error(nullptr) + ")";
  });
}

Watchdog::Watchdog(int rank, int device, Control& control, const NcclOptions& options)
    : rank_(rank), control_(control), options_(options), thread_([this, device] { run(device); }) {}

Watchdog::~Watchdog() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  stop_.notify_all();
  thread_.join();
}

void Watchdog::add(ncclComm_t communicator) {
  const std::lock_guard lock(mutex_);
  communicators_.push_back(communicator);
}

void Watchdog::remove(ncclComm_t communicator) {
  const std::lock_guard lock(mutex_);
  std::erase(communicators_, communicator);
}

void Watchdog::watch(const char* what, std::shared_ptr<const Event> done) {
  const std::lock_guard lock(mutex_);
  operations_.push_back({what, std::move(done), Clock::now()});
}

void Watchdog::begin_call(const char* what) {
  const std::lock_guard lock(mutex_);
  call_ = what;
  call_began_ = Clock::now();
}

void Watchdog::abort_communicators() noexcept {
  std::vector<ncclComm_t> communicators;
  {
    const std::lock_guard lock(mutex_);
    communicators.swap(communicators_);
    operations_.clear();
  }
  for (ncclComm_t communicator : communicators) nccl::comm_abort(communicator);
}

void Watchdog::end_process(const Error& error) noexcept {
  const int status = status_of(error);
  try {
    const Error named = of_rank(rank_, error);
    options_.ending.say(named);
    control_.abort(news_of(named));
    if (rank_ == 0) options_.ending.write(named);
    std::thread([status] {
      std::this_thread::sleep_for(kGrace);
      std::_Exit(status);
    }).detach();
  } catch (...) {  // it ends with or without words
  }
  abort_communicators();
  std::_Exit(status);
}

std::string Watchdog::failure() {
  const std::lock_guard lock(mutex_);
  for (ncclComm_t communicator : communicators_) {
    ncclResult_t error = ncclSuccess;
    if (nccl::comm_get_async_error(communicator, &error) != ncclSuccess ||
        error == ncclInProgress || error == ncclSuccess)
      continue;
    return std::string("NCCL: ") + nccl::get_error_string(error) + " (" +
           nccl::get_last_error(communicator) + ")";
  }
  std::erase_if(operations_, [](const Operation& o) { return o.done->reached(); });
  const auto late = [&](const char* what) {
    return fmt::format("{} has not ended within {} s: another rank hangs or has not come", what,
                       options_.timeout_seconds);
  };
  // One stream does them in their order, so that the first is the one that hangs.
  if (!operations_.empty() && seconds_since(operations_.front().began) > options_.timeout_seconds)
    return late(operations_.front().what);
  if (call_ != nullptr && seconds_since(call_began_) > options_.timeout_seconds) return late(call_);
  return {};
}

void Watchdog::run(int device) {
  cudaSetDevice(device);  // else an event's question would make a context on the first GPU
  std::unique_lock lock(mutex_);
  while (!stop_.wait_for(lock, kPeriod, [&] { return stopping_; })) {
    lock.unlock();
    std::string reason;
    try {
      reason = failure();
      if (reason.empty()) reason = control_.failure();
    } catch (const std::exception& error) {
      reason = error.what();
    }
    if (!reason.empty()) end_process(error_of(reason));
    lock.lock();
  }
}

}  // namespace plimsoll::runtime::comm
