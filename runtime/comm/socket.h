// TCP between ranks: whole messages, each wait with an end.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace plimsoll::runtime::comm {

using Deadline = std::chrono::steady_clock::time_point;
Deadline deadline_in(double seconds);

// bye: the rank is done, and closes the connection.
enum class MessageKind : std::uint32_t { hello = 1, gather, abort, bye };
struct Message {
  MessageKind kind = MessageKind::gather;
  std::string bytes;
};

// Owns a descriptor.
class Socket {
 public:
  Socket() = default;
  explicit Socket(int descriptor) : descriptor_(descriptor) {}
  ~Socket();
  Socket(Socket&& other) noexcept : descriptor_(std::exchange(other.descriptor_, -1)) {}
  Socket& operator=(Socket&& other) noexcept {
    std::swap(descriptor_, other.descriptor_);
    return *this;
  }
  explicit operator bool() const { return descriptor_ >= 0; }
  int descriptor() const { return descriptor_; }

  // Error{communicator}: the other end is gone, or `deadline` has passed. The text says which, and
  // not whose socket it is.
  void send(const Message& message, Deadline deadline) const;
  Message receive(Deadline deadline) const;
  // Whether what comes next is the end of the connection, without a `bye` (true), or an `abort`
  // (then it is read into `reason`); does not wait.
  bool ended(std::string& reason) const;
  std::string local_address() const;

 private:
  int descriptor_ = -1;
};

// The first of them on which something has come. Error{communicator}: nothing by the deadline.
std::size_t ready_of(const std::vector<const Socket*>& sockets, Deadline deadline);

// At `port`, or any (0), of all this host's addresses. Error{communicator} names the port.
Socket listen_at(int port);
int port_of(const Socket& listening);
Socket accept_from(const Socket& listening, Deadline deadline);
// Tries again until the deadline, since the other end may not listen yet.
Socket connect_to(const std::string& address, int port, Deadline deadline);

}  // namespace plimsoll::runtime::comm
