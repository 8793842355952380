// How ranks that are processes agree over the host while their tensors go another way: small
// messages, and the news that a rank has failed. No device memory.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "runtime/comm/communicator.h"
#include "runtime/comm/launch.h"

namespace plimsoll::runtime::comm {

// All ranks of a group call the same operations in the same order. Error{communicator} names the
// rank that failed or did not come.
class Control {
 public:
  virtual ~Control() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;
  virtual std::vector<std::string> gather(std::string bytes) = 0;
  virtual std::unique_ptr<Control> split(int color) = 0;
  // Tells the others; what they do next fails with the reason.
  virtual void abort(const std::string& reason) noexcept = 0;
  // What another rank has told, or "": asked by a second thread now and then.
  virtual std::string failure() { return {}; }
};

// One rank.
std::unique_ptr<Control> single_control();
// The ranks of torchrun or plain Slurm: rank 0 listens at the launch's address and port.
// Error{communicator}: nobody there within the timeout.
std::unique_ptr<Control> tcp_control(const Launch& launch, double timeout_seconds);
// Over MPI's processes, which must outlive it.
std::unique_ptr<Control> control_over(Communicator& hosts);

// Ranks before `rank` on the same host: which of the host's GPUs is its own.
int local_rank_of(const std::vector<std::string>& hosts, int rank);
std::string host_name();

}  // namespace plimsoll::runtime::comm
