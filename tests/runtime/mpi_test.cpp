// Under mpirun. Without arguments: MPI's sums and steps against those of threads. With one: a fault
// of the last rank, which must end the job.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <thread>

#include "runtime/comm/mpi_ranks.h"
#include "tests/failing_new.h"
#include "tests/runtime/sharded_step.h"

namespace plimsoll::runtime {
namespace {

void expect(bool ok, const std::string& claim) {
  check(ok, ErrorKind::internal, "not so: " + claim);
}

std::vector<float> values_of(int rank, std::size_t size) {
  std::vector<float> values(size);
  for (std::size_t i = 0; i < size; ++i)
    values[i] = drawn(static_cast<std::uint64_t>(rank) * 1000003 + i);
  return values;
}

TensorView view(std::vector<float>& values) {
  return {values.data(), DType::fp32, {static_cast<std::int64_t>(values.size())}};
}

// What threads make of the same values, on each rank.
std::vector<float> sum_by_threads(int ranks, std::size_t size) {
  std::vector<float> sum;
  comm::run_ranks(ranks, [&](comm::Communicator& threads) {
    std::vector<float> x = values_of(threads.rank(), size);
    threads.all_reduce(view(x));
    if (threads.rank() == 0) sum = x;
  });
  return sum;
}

bool same_bits(const std::vector<float>& a, const std::vector<float>& b, std::size_t first,
               std::size_t count) {
  return std::memcmp(a.data() + first, b.data() + first, count * sizeof(float)) == 0;
}

void expect_sums_of_threads(comm::Communicator& world, std::size_t staging_bytes) {
  const auto n = static_cast<std::size_t>(world.size());
  std::vector<float> staging(staging_bytes / sizeof(float));
  world.use_staging(staging.empty() ? TensorView() : view(staging));
  for (const std::size_t piece : {std::size_t{1}, std::size_t{5}, std::size_t{40000}}) {
    std::vector<float> whole = values_of(world.rank(), piece * n), scattered = whole;
    const std::vector<float> sum = sum_by_threads(world.size(), whole.size());
    world.all_reduce(view(whole));
    expect(same_bits(whole, sum, 0, sum.size()), "an all-reduce has the bits of threads");
    world.reduce_scatter(view(scattered));
    const std::size_t mine = static_cast<std::size_t>(world.rank()) * piece;
    expect(same_bits(scattered, sum, mine, piece), "a reduce-scatter has the bits of threads");
    world.all_gather(view(scattered));
    expect(same_bits(scattered, sum, 0, sum.size()), "pieces that are gathered are the whole");
  }
  world.use_staging({});
}

void expect_steps_of_threads(comm::Communicator& world) {
  StepCase c{.precision = models::Precision::bf16_mixed, .ranks = world.size()};
  c.accumulation = 2;
  for (c.stage = 0; c.stage <= 3; ++c.stage) {
    const ShardedStep threads = run_step(c)[static_cast<std::size_t>(world.rank())];
    expect(run_rank_step(c, world).same_values(threads), "a step has the bits of threads");
  }
  if (world.size() != 4) return;
  c.stage = 3;
  c.shard_group = 2;
  const ShardedStep threads = run_step(c)[static_cast<std::size_t>(world.rank())];
  expect(run_rank_step(c, world).same_values(threads), "a hybrid step has the bits of threads");
}

void expect_small_values(comm::Communicator& world) {
  const std::vector<double> ranks = world.gather(static_cast<double>(world.rank()));
  for (std::size_t r = 0; r < ranks.size(); ++r)
    expect(ranks[r] == static_cast<double>(r), "host values come in the order of the ranks");
  std::vector<float> x(3, static_cast<float>(world.rank()));
  world.broadcast(view(x), world.size() - 1);
  expect(x[2] == static_cast<float>(world.size() - 1), "a broadcast is the root's");
  const auto half = world.split(world.rank() % 2);
  expect(half->size() == (world.size() + 1 - world.rank() % 2) / 2, "one color, one group");
  expect(half->rank() == world.rank() / 2, "a group keeps the order");
}

void run(comm::Communicator& world, const std::string& fault) {
  world.barrier();
  const bool last = world.rank() == world.size() - 1;
  if (fault == "throws" && last) fail(ErrorKind::bad_input, "a fault of the test");
  if (fault == "fails" && last) fail(ErrorKind::device, "a fault of the test");
  // Rank 0 does not come to hear of it.
  if (fault == "alone" && last) fail(ErrorKind::device, "a fault of the test");
  if (fault == "alone") std::this_thread::sleep_for(std::chrono::seconds(60));
  if (fault == "hangs" && last) std::this_thread::sleep_for(std::chrono::seconds(60));
  if (fault == "dies" && last) std::_Exit(9);
  if (fault == "starves" && last) tests::fail_allocation_here(3);
  if (fault == "starved" && last) tests::fail_allocation_here(3, true);
  for (int i = 0; i < 3 && !fault.empty(); ++i) world.barrier();
  if (!fault.empty()) return;
  expect_small_values(world);
  for (const std::size_t staging : {0, 4096, 1 << 20}) expect_sums_of_threads(world, staging);
  expect_steps_of_threads(world);
}

}  // namespace
}  // namespace plimsoll::runtime

int main(int count, char** arguments) {
  using namespace plimsoll::runtime;
  if (!comm::started_by_mpi()) {
    std::fprintf(stderr, "not started by mpirun\n");
    return 77;
  }
  const std::string fault = count > 1 ? arguments[1] : "";
  comm::MpiOptions options;
  // Else a rank that waits for the one that fails may be the first to be heard, on a busy machine.
  options.timeout_seconds = fault == "hangs" ? 1 : 60;
  options.ending.report = [](const plimsoll::Error& error) {
    std::fprintf(stderr, "%s\n", error.message().c_str());
  };
  // In one write: ranks share the stream.
  options.ending.record = [](const plimsoll::Error& error) {
    const char* rank = std::getenv("OMPI_COMM_WORLD_RANK");
    const std::string line = std::string("rank ") + (rank != nullptr ? rank : "?") + " records " +
                             std::string(name_of(error.kind())) + " " + error.message() + "\n";
    std::fputs(line.c_str(), stderr);
  };
  comm::run_mpi_rank([&](comm::Communicator& world) { run(world, fault); }, options);
  return 0;
}
