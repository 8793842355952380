#include "runtime/comm/mpi_exchange.h"

#include "runtime/comm/mpi_news.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <set>
#include <thread>

namespace plimsoll::runtime::comm {

namespace {

// MPI counts in int.
constexpr std::int64_t kLargestMessage = 1 << 30;
// Ranks may be more than cores: who waits longer than a few turns sleeps. On a busy machine one
// turn may take as long as all others' time slices together, and hears of nothing meanwhile.
constexpr int kTurns = 200;
constexpr std::chrono::milliseconds kTurnsTogether(1);
constexpr std::chrono::microseconds kNap(100);

// `post(offset, bytes)` for each part of a message that MPI can count.
template <class Post>
void in_parts(Bytes bytes, Post post) {
  for (std::int64_t at = 0; at < bytes.value(); at += kLargestMessage)
    post(at, static_cast<int>(std::min(kLargestMessage, bytes.value() - at)));
}

}  // namespace

void expect_mpi(int code, const char* what) {
  check(code == MPI_SUCCESS, ErrorKind::communicator, [&] {
    std::array<char, MPI_MAX_ERROR_STRING> text{};
    int length = 0;
    MPI_Error_string(code, text.data(), &length);
    return std::string(what) + ": " + text.data();
  });
}

MpiExchange::~MpiExchange() {
  for (Request& r : requests_) {
    if (r.request == MPI_REQUEST_NULL) continue;
    if (r.receives) MPI_Cancel(&r.request);  // a message on its way cannot be called back
    MPI_Request_free(&r.request);
  }
}

void MpiExchange::send(int to, const void* data, Bytes bytes) {
  in_parts(bytes, [&](std::int64_t at, int count) {
    Request& r = requests_.emplace_back(Request{MPI_REQUEST_NULL, to, false});
    expect_mpi(MPI_Isend(static_cast<const std::byte*>(data) + at, count, MPI_BYTE, to, 0,
                         group_.communicator, &r.request),
               what_);
  });
}

void MpiExchange::receive(int from, void* data, Bytes bytes) {
  in_parts(bytes, [&](std::int64_t at, int count) {
    Request& r = requests_.emplace_back(Request{MPI_REQUEST_NULL, from, true});
    expect_mpi(MPI_Irecv(static_cast<std::byte*>(data) + at, count, MPI_BYTE, from, 0,
                         group_.communicator, &r.request),
               what_);
  });
}

bool MpiExchange::test() {
  bool all = true;
  for (Request& r : requests_) {
    if (r.request == MPI_REQUEST_NULL) continue;
    int done = 0;
    expect_mpi(MPI_Test(&r.request, &done, MPI_STATUS_IGNORE), what_);
    all = all && done != 0;
  }
  return all;
}

std::string MpiExchange::missing() const {
  std::set<int> ranks;
  for (const Request& r : requests_)
    if (r.request != MPI_REQUEST_NULL) ranks.insert(group_.world[static_cast<std::size_t>(r.peer)]);
  std::string text;
  for (const int rank : ranks) text += (text.empty() ? "" : ", ") + std::to_string(rank);
  return text;
}

void MpiExchange::finish() {
  const auto begin = std::chrono::steady_clock::now();
  const auto until = begin + std::chrono::duration<double>(group_.timeout_seconds);
  for (int turn = 0; !test(); ++turn) {
    if (turn < kTurns && std::chrono::steady_clock::now() - begin < kTurnsTogether) {
      std::this_thread::yield();
      continue;
    }
    hear_of_failures();
    check(std::chrono::steady_clock::now() < until, ErrorKind::communicator, [&] {
      return fmt::format("rank {}: no answer to {} within {} s, says rank {}", missing(), what_,
                         group_.timeout_seconds,
                         group_.world[static_cast<std::size_t>(group_.rank)]);
    });
    std::this_thread::sleep_for(kNap);
  }
  requests_.clear();
}

}  // namespace plimsoll::runtime::comm
