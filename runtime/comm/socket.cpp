#include "runtime/comm/socket.h"

#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <memory>
#include <thread>

#include "models/base/error.h"

namespace plimsoll::runtime::comm {

namespace {

// A stranger's bytes are not taken for a rank's: "plm1", then the kind, then the length.
constexpr std::uint32_t kMagic = 0x316d6c70;
constexpr std::uint64_t kLargest = std::uint64_t{1} << 32;
constexpr std::chrono::milliseconds kRetry(50);

struct Header {
  std::uint32_t magic = kMagic;
  std::uint32_t kind = 0;
  std::uint64_t bytes = 0;
};

[[noreturn]] void broken(const std::string& why) {
  fail(ErrorKind::communicator, why);
}

// The first descriptor that is ready.
std::size_t wait_for(std::vector<pollfd> descriptors, Deadline deadline) {
  using std::chrono::milliseconds;
  for (;;) {
    const auto left =
        std::chrono::duration_cast<milliseconds>(deadline - std::chrono::steady_clock::now());
    if (left.count() <= 0) broken("no answer in time");
    const int ready = poll(descriptors.data(), descriptors.size(),
                           static_cast<int>(std::min<std::int64_t>(left.count(), 60'000)));
    if (ready < 0 && errno != EINTR) broken(std::strerror(errno));
    for (std::size_t i = 0; ready > 0 && i < descriptors.size(); ++i)
      if (descriptors[i].revents != 0) return i;
  }
}

void wait_for_socket(int descriptor, short events, Deadline deadline) {
  wait_for({{descriptor, events, 0}}, deadline);
}

void send_all(int descriptor, const char* data, std::size_t bytes, Deadline deadline) {
  while (bytes > 0) {
    const ssize_t sent = ::send(descriptor, data, bytes, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent > 0) {
      data += sent;
      bytes -= static_cast<std::size_t>(sent);
    } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
      wait_for_socket(descriptor, POLLOUT, deadline);
    } else if (errno != EINTR) {
      broken("the connection has ended");
    }
  }
}

void receive_all(int descriptor, char* data, std::size_t bytes, Deadline deadline) {
  while (bytes > 0) {
    const ssize_t got = ::recv(descriptor, data, bytes, MSG_DONTWAIT);
    if (got > 0) {
      data += got;
      bytes -= static_cast<std::size_t>(got);
    } else if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) {
      wait_for_socket(descriptor, POLLIN, deadline);
    } else if (got == 0 || errno != EINTR) {
      broken("the connection has ended");
    }
  }
}

Socket tuned(Socket socket) {
  const int on = 1;
  setsockopt(socket.descriptor(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  setsockopt(socket.descriptor(), SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
  return socket;
}

using Addresses = std::unique_ptr<addrinfo, decltype(&freeaddrinfo)>;
Addresses addresses_of(const char* host, int port) {
  addrinfo hints{}, *found = nullptr;
  hints.ai_socktype = SOCK_STREAM;
  const int error = getaddrinfo(host, std::to_string(port).c_str(), &hints, &found);
  if (error != 0) broken(std::string(host) + ": " + gai_strerror(error));
  return {found, freeaddrinfo};
}

// An empty socket where nobody listens.
Socket try_connect(const addrinfo& address, Deadline deadline) {
  Socket socket(::socket(address.ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!socket) return {};
  if (connect(socket.descriptor(), address.ai_addr, address.ai_addrlen) == 0)
    return tuned(std::move(socket));
  if (errno != EINPROGRESS) return {};
  wait_for_socket(socket.descriptor(), POLLOUT, deadline);
  int error = 0;
  socklen_t length = sizeof error;
  getsockopt(socket.descriptor(), SOL_SOCKET, SO_ERROR, &error, &length);
  return error == 0 ? tuned(std::move(socket)) : Socket();
}

}  // namespace

Deadline deadline_in(double seconds) {
  return std::chrono::steady_clock::now() +
         std::chrono::duration_cast<Deadline::duration>(std::chrono::duration<double>(seconds));
}

Socket::~Socket() {
  if (descriptor_ >= 0) close(descriptor_);
}

void Socket::send(const Message& message, Deadline deadline) const {
  const Header header{kMagic, static_cast<std::uint32_t>(message.kind), message.bytes.size()};
  std::array<char, sizeof header> head;
  std::memcpy(head.data(), &header, sizeof header);
  send_all(descriptor_, head.data(), head.size(), deadline);
  send_all(descriptor_, message.bytes.data(), message.bytes.size(), deadline);
}

Message Socket::receive(Deadline deadline) const {
  Header header;
  std::array<char, sizeof header> head;
  receive_all(descriptor_, head.data(), head.size(), deadline);
  std::memcpy(&header, head.data(), sizeof header);
  if (header.magic != kMagic || header.bytes > kLargest) broken("not a rank of this job");
  Message message{static_cast<MessageKind>(header.kind), std::string(header.bytes, '\0')};
  receive_all(descriptor_, message.bytes.data(), message.bytes.size(), deadline);
  return message;
}

bool Socket::ended(std::string& reason) const {
  Header header;
  const ssize_t got = ::recv(descriptor_, &header, sizeof header, MSG_PEEK | MSG_DONTWAIT);
  if (got == 0) return true;
  if (got < 0) return errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR;
  if (got == sizeof header && header.kind == static_cast<std::uint32_t>(MessageKind::abort))
    reason = receive(deadline_in(1)).bytes;
  return false;
}

std::string Socket::local_address() const {
  sockaddr_storage address{};
  socklen_t length = sizeof address;
  std::array<char, NI_MAXHOST> text{};
  if (getsockname(descriptor_, reinterpret_cast<sockaddr*>(&address), &length) != 0 ||
      getnameinfo(reinterpret_cast<sockaddr*>(&address), length, text.data(), text.size(), nullptr,
                  0, NI_NUMERICHOST) != 0)
    broken("no address of its own");
  return text.data();
}

std::size_t ready_of(const std::vector<const Socket*>& sockets, Deadline deadline) {
  std::vector<pollfd> descriptors;
  for (const Socket* socket : sockets) descriptors.push_back({socket->descriptor(), POLLIN, 0});
  return wait_for(std::move(descriptors), deadline);
}

Socket listen_at(int port) {
  Socket socket(::socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_storage address{};
  socklen_t length = sizeof(sockaddr_in6);
  const int off = 0, on = 1;
  if (socket) {
    auto& six = reinterpret_cast<sockaddr_in6&>(address);
    six.sin6_family = AF_INET6;
    six.sin6_port = htons(static_cast<std::uint16_t>(port));
    setsockopt(socket.descriptor(), IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off);
  } else {  // a host without IPv6
    socket = Socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    auto& four = reinterpret_cast<sockaddr_in&>(address);
    four.sin_family = AF_INET;
    four.sin_port = htons(static_cast<std::uint16_t>(port));
    length = sizeof(sockaddr_in);
  }
  setsockopt(socket.descriptor(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  if (bind(socket.descriptor(), reinterpret_cast<sockaddr*>(&address), length) != 0 ||
      listen(socket.descriptor(), SOMAXCONN) != 0)
    broken("port " + std::to_string(port) + ": " + std::strerror(errno) +
           " (another job here? give each its own MASTER_PORT)");
  return socket;
}

int port_of(const Socket& listening) {
  sockaddr_storage address{};
  socklen_t length = sizeof address;
  getsockname(listening.descriptor(), reinterpret_cast<sockaddr*>(&address), &length);
  return ntohs(address.ss_family == AF_INET6 ? reinterpret_cast<sockaddr_in6&>(address).sin6_port
                                             : reinterpret_cast<sockaddr_in&>(address).sin_port);
}

Socket accept_from(const Socket& listening, Deadline deadline) {
  for (;;) {
    wait_for_socket(listening.descriptor(), POLLIN, deadline);
    Socket socket(accept4(listening.descriptor(), nullptr, nullptr, SOCK_CLOEXEC));
    if (socket) return tuned(std::move(socket));
    if (errno != EINTR && errno != ECONNABORTED) broken(std::strerror(errno));
  }
}

Socket connect_to(const std::string& address, int port, Deadline deadline) {
  for (;;) {
    const Addresses addresses = addresses_of(address.c_str(), port);
    for (const addrinfo* a = addresses.get(); a != nullptr; a = a->ai_next)
      if (Socket socket = try_connect(*a, deadline)) return socket;
    if (std::chrono::steady_clock::now() + kRetry >= deadline)
      broken("nobody listens at " + address + " port " + std::to_string(port));
    std::this_thread::sleep_for(kRetry);
  }
}

}  // namespace plimsoll::runtime::comm
