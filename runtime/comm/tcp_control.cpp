// A star: rank 0 has a connection to each of the others.
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <mutex>

#include "runtime/comm/control.h"
#include "runtime/comm/ending.h"
#include "runtime/comm/socket.h"

namespace plimsoll::runtime::comm {

namespace {

constexpr double kFarewellSeconds = 1;  // for the news of a failure

// Strings, each behind its length in eight bytes.
std::string joined(const std::vector<std::string>& parts) {
  std::string bytes;
  for (const std::string& part : parts) {
    const std::uint64_t length = part.size();
    bytes.append(reinterpret_cast<const char*>(&length), sizeof length);
    bytes += part;
  }
  return bytes;
}

std::vector<std::string> parted(const std::string& bytes) {
  std::vector<std::string> parts;
  for (std::size_t at = 0; at < bytes.size();) {
    std::uint64_t length = 0;
    check(bytes.size() - at >= sizeof length, ErrorKind::communicator, "a message is cut short");
    bytes.copy(reinterpret_cast<char*>(&length), sizeof length, at);
    at += sizeof length;
    check(length <= bytes.size() - at, ErrorKind::communicator, "a message is cut short");
    parts.push_back(bytes.substr(at, length));
    at += length;
  }
  return parts;
}

struct Member {
  int rank = 0, size = 1;
  std::vector<int> world;  // the group's ranks in the world, for messages
  double timeout_seconds = 600;
};

class TcpControl final : public Control {
 public:
  explicit TcpControl(Member member) : member_(std::move(member)) {
    peers_.resize(static_cast<std::size_t>(member_.rank == 0 ? member_.size : 1));
  }
  ~TcpControl() override {
    for (std::size_t r = others(); r < peers_.size(); ++r) try {
        if (peers_[r]) peers_[r].send({MessageKind::bye, {}}, deadline_in(kFarewellSeconds));
      } catch (const std::exception&) {  // it has gone first
      }
  }
  TcpControl(const TcpControl&) = delete;
  TcpControl& operator=(const TcpControl&) = delete;
  void meet(Socket listening);
  void meet(const std::string& address, int port);

  int rank() const override { return member_.rank; }
  int size() const override { return member_.size; }
  std::vector<std::string> gather(std::string bytes) override;
  std::unique_ptr<Control> split(int color) override;
  void abort(const std::string& reason) noexcept override;
  std::string failure() override;

 private:
  std::size_t others() const { return member_.rank == 0 ? 1 : 0; }  // first of peers_ in use
  std::string name_of(std::size_t peer) const {
    return "rank " + std::to_string(member_.world[member_.rank == 0 ? peer : 0]);
  }
  // With the rank's name before the reason.
  template <class Action>
  auto with(std::size_t peer, Action action) {
    try {
      return action(peers_[peer]);
    } catch (const Error& error) {
      fail(ErrorKind::communicator, name_of(peer) + ": " + error.message());
    }
  }
  std::string receive(std::size_t peer, Deadline deadline) {
    const Message message = with(peer, [&](Socket& s) { return s.receive(deadline); });
    if (message.kind == MessageKind::abort) throw error_of(message.bytes);
    check(message.kind != MessageKind::bye, ErrorKind::communicator,
          [&] { return name_of(peer) + ": has left while others waited for it"; });
    return message.bytes;
  }

  void receive_all(std::vector<std::string>& all, Deadline deadline);

  Member member_;
  std::mutex mutex_;
  std::vector<Socket> peers_;  // by rank on rank 0; else that to rank 0
};

// A stranger who connects (a port scan) is sent away, and does not keep the ranks from meeting.
void TcpControl::meet(Socket listening) {
  const Deadline deadline = deadline_in(member_.timeout_seconds);
  for (int missing = member_.size - 1; missing > 0;) {
    Socket socket;
    try {
      socket = accept_from(listening, deadline);
    } catch (const Error& error) {
      std::string ranks;
      for (std::size_t r = 1; r < peers_.size(); ++r)
        if (!peers_[r]) ranks += (ranks.empty() ? "" : ", ") + std::to_string(member_.world[r]);
      fail(ErrorKind::communicator, fmt::format("rank {} did not come to rank 0 within {} s: {}",
                                                ranks, member_.timeout_seconds, error.message()));
    }
    try {
      const Message hello = socket.receive(std::min(deadline, deadline_in(5)));
      int rank = 0;
      std::from_chars(hello.bytes.data(), hello.bytes.data() + hello.bytes.size(), rank);
      if (hello.kind != MessageKind::hello || rank <= 0 || rank >= member_.size) continue;
      Socket& peer = peers_[static_cast<std::size_t>(rank)];
      if (peer) continue;
      peer = std::move(socket);
      --missing;
    } catch (const Error&) {
    }
  }
}

void TcpControl::meet(const std::string& address, int port) {
  const Deadline deadline = deadline_in(member_.timeout_seconds);
  try {
    peers_[0] = connect_to(address, port, deadline);
    peers_[0].send({MessageKind::hello, std::to_string(member_.rank)}, deadline);
  } catch (const Error& error) {
    fail(ErrorKind::communicator,
         "rank " + std::to_string(member_.world[0]) + " is not there: " + error.message());
  }
}

std::vector<std::string> TcpControl::gather(std::string bytes) {
  const std::lock_guard lock(mutex_);
  const Deadline deadline = deadline_in(member_.timeout_seconds);
  if (member_.rank != 0) {
    with(0, [&](Socket& s) { s.send({MessageKind::gather, std::move(bytes)}, deadline); });
    return parted(receive(0, deadline));
  }
  std::vector<std::string> all(peers_.size());
  all[0] = std::move(bytes);
  receive_all(all, deadline);
  const std::string reply = joined(all);
  for (std::size_t r = 1; r < peers_.size(); ++r)
    with(r, [&](Socket& s) { s.send({MessageKind::gather, reply}, deadline); });
  return all;
}

// In the order in which they come: a rank that gives up is heard while another is slow.
void TcpControl::receive_all(std::vector<std::string>& all, Deadline deadline) {
  std::vector<std::size_t> missing;
  for (std::size_t r = 1; r < peers_.size(); ++r) missing.push_back(r);
  while (!missing.empty()) {
    std::vector<const Socket*> sockets;
    for (const std::size_t r : missing) sockets.push_back(&peers_[r]);
    std::size_t next = 0;
    try {
      next = ready_of(sockets, deadline);
    } catch (const Error& error) {
      std::string names;
      for (const std::size_t r : missing) names += (names.empty() ? "" : ", ") + name_of(r);
      fail(ErrorKind::communicator, names + ": " + error.message());
    }
    all[missing[next]] = receive(missing[next], deadline);
    missing.erase(missing.begin() + static_cast<std::ptrdiff_t>(next));
  }
}

std::unique_ptr<Control> TcpControl::split(int color) {
  // The lowest rank of each color listens where its connection to rank 0 shows it to be.
  const std::vector<std::string> colors = gather(std::to_string(color));
  const std::string own = std::to_string(color);
  Member part{.timeout_seconds = member_.timeout_seconds};
  part.size = 0;
  std::size_t first = colors.size();
  for (std::size_t r = 0; r < colors.size(); ++r) {
    if (colors[r] != own) continue;
    first = std::min(first, r);
    if (r == static_cast<std::size_t>(member_.rank)) part.rank = part.size;
    part.world.push_back(member_.world[r]);
    ++part.size;
  }
  const bool listens = part.rank == 0 && part.size > 1;
  Socket listening = listens ? listen_at(0) : Socket();
  const Socket& seen = peers_[others() < peers_.size() ? others() : 0];
  const std::vector<std::string> places =
      gather(listens ? std::to_string(port_of(listening)) + " " + seen.local_address() : "");
  if (part.size == 1) return single_control();
  auto control = std::make_unique<TcpControl>(part);
  if (listens) {
    control->meet(std::move(listening));
  } else {
    const std::string& place = places[first];
    const auto space = place.find(' ');
    int port = 0;
    std::from_chars(place.data(), place.data() + space, port);
    control->meet(place.substr(space + 1), port);
  }
  return control;
}

void TcpControl::abort(const std::string& reason) noexcept {
  try {
    const std::unique_lock lock(mutex_, std::try_to_lock);  // who waits in `gather` ends with us
    for (std::size_t r = others(); r < peers_.size(); ++r) try {
        if (peers_[r]) peers_[r].send({MessageKind::abort, reason}, deadline_in(kFarewellSeconds));
      } catch (const Error&) {
      }
  } catch (const std::exception&) {
  }
}

std::string TcpControl::failure() {
  const std::unique_lock lock(mutex_, std::try_to_lock);
  if (!lock.owns_lock()) return {};  // `gather` sees it itself
  for (std::size_t r = others(); r < peers_.size(); ++r) {
    std::string reason;
    const bool gone = peers_[r].ended(reason);
    if (!reason.empty()) return reason;
    if (gone) return name_of(r) + ": its process has ended";
  }
  return {};
}

}  // namespace

std::unique_ptr<Control> tcp_control(const Launch& launch, double timeout_seconds) {
  if (launch.world == 1) return single_control();
  Member member{.rank = launch.rank, .size = launch.world, .timeout_seconds = timeout_seconds};
  for (int r = 0; r < launch.world; ++r) member.world.push_back(r);
  auto control = std::make_unique<TcpControl>(std::move(member));
  if (launch.rank == 0)
    control->meet(listen_at(launch.port));
  else
    control->meet(launch.address, launch.port);
  return control;
}

}  // namespace plimsoll::runtime::comm
