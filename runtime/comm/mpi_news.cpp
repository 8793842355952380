#include "runtime/comm/mpi_news.h"

#include <chrono>
#include <string>
#include <thread>

#include "runtime/comm/ending.h"
#include "runtime/comm/mpi_exchange.h"

namespace plimsoll::runtime::comm {

namespace {
constexpr int kNewsTag = 1;  // messages have 0
constexpr std::chrono::milliseconds kNap(10);
}  // namespace

void tell_rank_0(const Error& error, double seconds) {
  const auto until = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
  const std::string news = news_of(error);
  MPI_Request request = MPI_REQUEST_NULL;
  if (MPI_Isend(news.data(), static_cast<int>(news.size()), MPI_BYTE, 0, kNewsTag, MPI_COMM_WORLD,
                &request) != MPI_SUCCESS)
    return;
  while (std::chrono::steady_clock::now() < until) {
    int done = 0;
    MPI_Test(&request, &done, MPI_STATUS_IGNORE);  // so that MPI goes on with it
    std::this_thread::sleep_for(kNap);
  }
}

void hear_of_failures() {
  int rank = 0, there = 0, bytes = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Status status;
  if (rank != 0 || MPI_Iprobe(MPI_ANY_SOURCE, kNewsTag, MPI_COMM_WORLD, &there, &status) != 0 ||
      there == 0 || MPI_Get_count(&status, MPI_BYTE, &bytes) != 0)
    return;
  std::string news(static_cast<std::size_t>(bytes), '\0');
  expect_mpi(MPI_Recv(news.data(), bytes, MPI_BYTE, status.MPI_SOURCE, kNewsTag, MPI_COMM_WORLD,
                      MPI_STATUS_IGNORE),
             "news of a failure");
  throw Told(error_of(news));
}

}  // namespace plimsoll::runtime::comm
