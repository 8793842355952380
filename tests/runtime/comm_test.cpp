#include <atomic>
#include <chrono>
#include <cstring>
#include <future>
#include <thread>

#include <doctest/doctest.h>

#include "kernels/number.h"
#include "runtime/comm/threads.h"
#include "runtime/comm/tree_sum.h"

namespace plimsoll::runtime::comm {
namespace {

using kernels::Bf16;
using kernels::Fp16;

template <class T>
constexpr DType dtype_of();
template <>
constexpr DType dtype_of<float>() {
  return DType::fp32;
}
template <>
constexpr DType dtype_of<double>() {
  return DType::fp64;
}
template <>
constexpr DType dtype_of<Bf16>() {
  return DType::bf16;
}
template <>
constexpr DType dtype_of<Fp16>() {
  return DType::fp16;
}

template <class T>
TensorView view(std::vector<T>& values) {
  return {values.data(), dtype_of<T>(), {static_cast<std::int64_t>(values.size())}};
}

template <class T>
T number(std::int64_t value) {
  if constexpr (std::is_same_v<T, Bf16> || std::is_same_v<T, Fp16>)
    return kernels::narrowed<T>(static_cast<float>(value));
  else
    return static_cast<T>(value);
}
double plain(float x) {
  return x;
}
double plain(double x) {
  return x;
}
double plain(Bf16 x) {
  return kernels::widened(x);
}
double plain(Fp16 x) {
  return kernels::widened(x);
}

// Between -1 and 1, other bits for every rank and element.
float noise(int rank, std::size_t i) {
  const std::uint32_t x = (static_cast<std::uint32_t>(i) * 2654435761u) ^
                          (static_cast<std::uint32_t>(rank + 1) * 2246822519u);
  return static_cast<float>(static_cast<std::int32_t>(x * 3266489917u)) * 0x1p-31f;
}

// What ends the job: its kind and its message.
std::string error_of(int ranks, std::function<void(Communicator&)> function,
                     const ThreadOptions& options = {}) {
  try {
    run_ranks(ranks, std::move(function), options);
  } catch (const Error& error) {
    return std::string(name_of(error.kind())) + " | " + error.message();
  }
  return "no error";
}

// Rank r has r + 1 + i mod 3 in element i: n (n + 1) / 2 + n (i mod 3), exact in every dtype.
template <class T>
void expect_exact_sums(int ranks, std::size_t size) {
  std::atomic<int> right = 0;
  run_ranks(ranks, [&](Communicator& comm) {
    std::vector<T> values(size);
    for (std::size_t i = 0; i < size; ++i)
      values[i] = number<T>(comm.rank() + 1 + static_cast<std::int64_t>(i % 3));
    comm.all_reduce(view(values));
    bool all = true;
    for (std::size_t i = 0; i < size; ++i)
      all = all && plain(values[i]) == ranks * (ranks + 1) / 2 + ranks * static_cast<int>(i % 3);
    right += all ? 1 : 0;
  });
  CHECK(right == ranks);
}

TEST_CASE("an all-reduce is the sum on every rank, whatever the size and the dtype") {
  for (const int ranks : {1, 2, 3, 4, 8})
    for (const std::size_t size : {0u, 1u, 5u, 64u, 1003u}) {
      CAPTURE(ranks);
      CAPTURE(size);
      expect_exact_sums<float>(ranks, size);
      expect_exact_sums<double>(ranks, size);
      expect_exact_sums<Bf16>(ranks, size);
      expect_exact_sums<Fp16>(ranks, size);
    }
}

float sum_of(std::vector<float> values) {
  std::vector<const void*> ranks;
  for (const float& value : values) ranks.push_back(&value);
  float sum = 0;
  void* to = &sum;
  tree_sum(ranks, {&to, 1}, DType::fp32, 1);
  return sum;
}

TEST_CASE("ranks are added in one balanced tree") {
  const float big = 0x1p24f;  // big + 1 rounds to big, big - 1 is exact
  // (big + 1) + (1 - big) = big - (big - 1) = 1; one after another: 0
  CHECK(sum_of({big, 1, 1, -big}) == 1);
  // (big + 1) - big = 0; the last of three goes up alone
  CHECK(sum_of({big, 1, -big}) == 0);
  CHECK(sum_of({1, big, -big}) == 0);
  // ((0 + 1) + (2 + 3)) + (4 + 5): (big + 2) + (1 + -big) = 3 ... (big + 2) - (big - 1) = 3
  CHECK(sum_of({big, 1, 1, 1, 1, -big}) == 3);
  // ((0+1)+(2+3)) + ((4+5)+6): (big + 1 + 2) = big + 2 (even); (1 + 1) - big = 2 - big: 4
  CHECK(sum_of({big, 1, 1, 1, 1, 1, -big}) == 4);
}

TEST_CASE("a sum of 16-bit values is rounded once") {
  // bf16 has 8 bits: 257 would be 256, and 256 + 1 + 1 rounded each time 256
  run_ranks(3, [](Communicator& comm) {
    std::vector<Bf16> x{number<Bf16>(comm.rank() == 0 ? 256 : 1)};
    comm.all_reduce(view(x));
    CHECK(plain(x[0]) == 258);
  });
}

template <class T>
void expect_same_bits(int ranks, std::size_t piece) {
  std::atomic<int> equal = 0;
  run_ranks(ranks, [&](Communicator& comm) {
    const std::size_t whole = piece * static_cast<std::size_t>(ranks);
    std::vector<T> reduced(whole);
    for (std::size_t i = 0; i < whole; ++i)
      reduced[i] = kernels::narrowed<T>(noise(comm.rank(), i));
    std::vector<T> scattered = reduced, in_two = reduced;
    comm.all_reduce(view(reduced));
    comm.reduce_scatter(view(scattered));
    const auto half = static_cast<std::int64_t>(piece / 2);
    Pending first = comm.start_reduce_scatter(view(in_two), {0, half});
    Pending second =
        comm.start_reduce_scatter(view(in_two), {half, static_cast<std::int64_t>(piece) - half});
    first.wait();
    second.wait();
    const auto mine = static_cast<std::size_t>(comm.rank()) * piece;
    const auto same = [&](const std::vector<T>& other) {
      return std::memcmp(other.data() + mine, reduced.data() + mine, piece * sizeof(T)) == 0;
    };
    equal += same(scattered) && same(in_two) ? 1 : 0;
  });
  CHECK(equal == ranks);
}

TEST_CASE("a reduce-scatter, whole or in two messages, has the bits of the all-reduce") {
  for (const int ranks : {1, 2, 3, 4, 8})
    for (const std::size_t piece : {1u, 8u, 515u, 2000u}) {
      CAPTURE(ranks);
      CAPTURE(piece);
      expect_same_bits<float>(ranks, piece);
      expect_same_bits<Bf16>(ranks, piece);
      expect_same_bits<Fp16>(ranks, piece);
    }
}

TEST_CASE("an all-gather puts the pieces one after another, from outside and in place") {
  for (const int ranks : {1, 2, 3, 8}) {
    std::atomic<int> right = 0;
    run_ranks(ranks, [&](Communicator& comm) {
      const std::size_t n = static_cast<std::size_t>(ranks) * 3;
      std::vector<float> outside(n, -1), in_place(n, -1);
      const auto mine = static_cast<std::size_t>(comm.rank()) * 3;
      for (std::size_t i = 0; i < 3; ++i) in_place[mine + i] = static_cast<float>(mine + i);
      std::vector<float> piece(in_place.begin() + static_cast<std::ptrdiff_t>(mine),
                               in_place.begin() + static_cast<std::ptrdiff_t>(mine) + 3);
      if (ranks == 1)
        outside = piece;
      else
        comm.all_gather(view(piece), view(outside));
      comm.all_gather(view(in_place));
      bool all = true;
      for (std::size_t i = 0; i < n; ++i)
        all = all && outside[i] == static_cast<float>(i) && in_place[i] == static_cast<float>(i);
      right += all ? 1 : 0;
    });
    CHECK(right == ranks);
  }
}

TEST_CASE("operations that were started may be waited for later, while others are started") {
  run_ranks(4, [](Communicator& comm) {
    std::vector<std::vector<float>> buffers(20, std::vector<float>(7));
    std::vector<Pending> pending;
    for (std::size_t i = 0; i < buffers.size(); ++i) {
      std::fill(buffers[i].begin(), buffers[i].end(), static_cast<float>(i));
      pending.push_back(comm.start_all_reduce(view(buffers[i])));
    }
    for (Pending& p : pending) p.wait();
    for (std::size_t i = 0; i < buffers.size(); ++i)
      CHECK(buffers[i][3] == static_cast<float>(4 * i));
  });
}

TEST_CASE("a broadcast is the root's, and host values come in the order of the ranks") {
  run_ranks(3, [](Communicator& comm) {
    std::vector<float> x(5, static_cast<float>(comm.rank()));
    comm.broadcast(view(x), 2);
    CHECK(x[4] == 2);
    CHECK(comm.gather(comm.rank() * 0.5) == std::vector<double>{0, 0.5, 1});
    CHECK(comm.gather(std::string(static_cast<std::size_t>(comm.rank()), 'x')) ==
          std::vector<std::string>{"", "x", "xx"});
  });
}

TEST_CASE("a group is split into groups of one color, each with its own order of operations") {
  run_ranks(6, [](Communicator& world) {
    const auto pair = world.split(world.rank() / 2);  // {0 1} {2 3} {4 5}
    const auto across = world.split(world.rank() % 2);  // {0 2 4} {1 3 5}
    CHECK(pair->size() == 2);
    CHECK(pair->rank() == world.rank() % 2);
    CHECK(across->size() == 3);
    CHECK(across->rank() == world.rank() / 2);
    // The third pair works more often: groups do not wait for each other.
    for (int i = 0; i < (world.rank() >= 4 ? 5 : 2); ++i) {
      std::vector<float> x{static_cast<float>(world.rank())};
      pair->all_reduce(view(x));
      CHECK(x[0] == static_cast<float>(world.rank() / 2 * 4 + 1));
    }
    std::vector<float> x{static_cast<float>(world.rank())};
    across->all_reduce(view(x));
    CHECK(x[0] == (world.rank() % 2 == 0 ? 6 : 9));
  });
}

TEST_CASE("the first error of a rank ends the job and names the rank") {
  for (const int ranks : {1, 2, 8}) {
    CAPTURE(ranks);
    const int bad = ranks - 1;
    CHECK(error_of(ranks, [&](Communicator& comm) {
            std::vector<float> x(100);
            comm.all_reduce(view(x));
            if (comm.rank() == bad) fail(ErrorKind::bad_input, "the file is empty");
            for (int i = 0; i < 3; ++i) comm.all_reduce(view(x));
          }) == "bad_input | rank " + std::to_string(bad) + ": the file is empty");
  }
  // Memory has put the rank in front already.
  CHECK(error_of(2, [](Communicator& comm) {
          if (comm.rank() == 1) fail(ErrorKind::out_of_memory, "rank 1: no room");
          comm.barrier();
        }) == "out_of_memory | rank 1: no room");
  CHECK(error_of(2, [](Communicator& comm) {
          if (comm.rank() == 0) throw std::runtime_error("odd");
          comm.barrier();
        }) == "internal | rank 0: odd");
}

TEST_CASE("a rank that fails between start and wait gives its buffers back when nobody uses them") {
  for (int again = 0; again < 20; ++again)
    CHECK(error_of(4, [](Communicator& comm) {
            std::vector<float> x(50000, 1);  // dies when rank 1 unwinds
            Pending pending = comm.start_all_reduce(view(x));
            if (comm.rank() == 1) fail(ErrorKind::internal, "lost");
            pending.wait();
            comm.barrier();
          }) == "internal | rank 1: lost");
}

TEST_CASE("a rank may end the job of all groups with a reason") {
  CHECK(error_of(4, [](Communicator& world) {
          const auto pair = world.split(world.rank() / 2);
          if (world.rank() == 3) pair->abort("the loss is not finite");
          world.barrier();
        }) == "communicator | rank 3: the loss is not finite");
}

TEST_CASE("ranks that call different operations are told so") {
  const std::string message = error_of(2, [](Communicator& comm) {
    std::vector<float> x(comm.rank() == 0 ? 4 : 8);
    comm.all_reduce(view(x));
  });
  CHECK(message ==
        "communicator | rank 1: all_reduce of 8 fp32, where rank 0 has all_reduce of 4 fp32");
}

TEST_CASE("a rank that hangs ends the job after the timeout, and the others do not wait for ever") {
  const auto release = std::make_shared<std::promise<void>>();
  const auto released = std::make_shared<std::shared_future<void>>(release->get_future().share());
  const auto left = std::make_shared<std::promise<void>>();
  auto gone = left->get_future();
  const auto begin = std::chrono::steady_clock::now();
  const std::string message = error_of(3,
                                       [released, left](Communicator& comm) {
                                         comm.barrier();
                                         if (comm.rank() == 1) {
                                           released->wait();
                                           left->set_value();
                                           return;
                                         }
                                         comm.barrier();
                                       },
                                       {.timeout_seconds = 0.2});
  CHECK(message.find("communicator | rank 1: not there for barrier after 0.2 s, of which ") == 0);
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
  CHECK(took.count() < 5);
  release->set_value();  // the rank that was left behind may go
  gone.wait();
}

}  // namespace
}  // namespace plimsoll::runtime::comm
