// The runtime on a GPU: memory, copies, ranks as threads, NCCL with one rank.
#define DOCTEST_CONFIG_IMPLEMENT
#include <doctest/doctest.h>

#include <cstdio>
#include <numeric>
#include <vector>

#include "runtime/comm/nccl_ranks.h"
#include "runtime/comm/threads.h"
#include "runtime/memory.h"
#include "runtime/probe.h"

namespace plimsoll::runtime {
namespace {

using models::Category;

std::vector<float> read(Device& device, TensorView view) {
  std::vector<float> values(static_cast<std::size_t>(view.elements()));
  device.copy_out(values.data(), view.data, storage(Count(view.elements()), view.dtype));
  return values;
}

void write(Device& device, TensorView view, const std::vector<float>& values) {
  device.copy_in(view.data, values.data(), storage(Count(view.elements()), view.dtype));
}

std::vector<float> counted(std::size_t n, float first) {
  std::vector<float> values(n);
  std::iota(values.begin(), values.end(), first);
  return values;
}

TEST_CASE("what is copied in comes out, small and large, through either way in") {
  Device& device = cuda_device(0);
  Memory memory(device, 0, {});
  for (const std::int64_t n : {1, 1000, 1 << 18, (1 << 18) + 1, 3 << 20}) {
    Tensor tensor = memory.allocate("x", Category::activations, DType::fp32, {n});
    const auto values = counted(static_cast<std::size_t>(n), 7);
    write(device, tensor.view(), values);
    CHECK(read(device, tensor.view()) == values);
  }
}

TEST_CASE("an arena grows on the GPU and what was there stays where it was") {
  Device& device = cuda_device(0);
  Memory memory(device, 0, {});
  Tensor first = memory.allocate("first", Category::activations, DType::fp32, {1000});
  write(device, first.view(), counted(1000, 0));
  const GpuReading before = read_gpu(0);
  std::vector<Tensor> more;
  for (int i = 0; i < 8; ++i)
    more.push_back(memory.allocate("more", Category::activations, DType::uint8, {32 << 20}));
  const GpuReading after = read_gpu(0);
  CHECK(read(device, first.view()) == counted(1000, 0));
  // 8 · 32 MiB, rounded up to whole granules of 2 MiB.
  const std::int64_t taken = before.free.value() - after.free.value();
  CHECK(taken >= std::int64_t{8} * (32 << 20));
  CHECK(taken <= std::int64_t{8} * (32 << 20) + (4 << 20));
}

TEST_CASE("poison fills a block at its birth") {
  Device& device = cuda_device(0);
  Memory memory(device, 0, {.poison = true});
  Tensor tensor = memory.allocate("x", Category::activations, DType::uint8, {100});
  std::vector<unsigned char> bytes(100);
  device.copy_out(bytes.data(), tensor.view().data, tensor.bytes());
  CHECK(bytes == std::vector<unsigned char>(100, 0xff));
}

TEST_CASE("more than the GPU has is refused with what is free, and the GPU goes on working") {
  Device& device = cuda_device(0);
  const auto total = read_gpu(0).total.value();
  try {
    Memory memory(device, 0, {});
    Tensor tensor = memory.allocate("x", Category::activations, DType::uint8, {2 * total});
    FAIL("twice the GPU's memory");
  } catch (const Error& error) {
    CHECK(error.kind() == ErrorKind::out_of_memory);
  }
  Memory memory(device, 0, {});
  Tensor tensor = memory.allocate("x", Category::activations, DType::fp32, {10});
  write(device, tensor.view(), counted(10, 1));
  CHECK(read(device, tensor.view()) == counted(10, 1));
}

// Every collective on `world`, with whole numbers, so that sums are exact.
void check_collectives(comm::Communicator& world, Device& device) {
  Memory memory(device, world.rank(), {});
  const std::int64_t n = 12, ranks = world.size(), piece = n / ranks;
  const auto rank = static_cast<float>(world.rank()), all = static_cast<float>(ranks);
  Tensor tensor = memory.allocate("x", Category::communication, DType::fp32, {n});
  const auto reset = [&] { write(device, tensor.view(), counted(12, 100 * rank)); };
  const float sum = 100 * all * (all - 1) / 2;  // of the ranks' first elements

  reset();
  world.all_reduce(tensor.view());
  std::vector<float> expected;
  for (int i = 0; i < 12; ++i) expected.push_back(sum + all * static_cast<float>(i));
  CHECK(read(device, tensor.view()) == expected);

  reset();
  world.reduce_scatter(tensor.view());
  const auto own = static_cast<std::size_t>(piece * world.rank());
  const auto reduced = read(device, tensor.view());
  for (std::size_t i = own; i < own + static_cast<std::size_t>(piece); ++i)
    CHECK(reduced[i] == expected[i]);

  reset();
  world.all_gather(tensor.view());
  const auto gathered = read(device, tensor.view());
  for (std::size_t i = 0; i < 12; ++i)
    CHECK(gathered[i] == static_cast<float>(100 * (i / static_cast<std::size_t>(piece)) + i));

  reset();
  world.broadcast(tensor.view(), static_cast<int>(ranks) - 1);
  CHECK(read(device, tensor.view()) == counted(12, 100 * (all - 1)));
  device.synchronize();
}

TEST_CASE("ranks that are threads of one GPU exchange what ranks on the host exchange") {
  Device& device = cuda_device(0);
  for (const int ranks : {1, 2, 3, 4})
    comm::run_ranks(ranks, [&](comm::Communicator& world) { check_collectives(world, device); },
                    {.timeout_seconds = 60, .buffers = &comm::cuda_buffers()});
}

TEST_CASE("NCCL with one rank: every collective, both ways of adding, and a group") {
  Device& device = cuda_device(0);
  device.kernels();
  for (const bool deterministic : {true, false}) {
    const auto world = comm::nccl_communicator(
        comm::single_control(),
        {.timeout_seconds = 60, .deterministic = deterministic, .also_alone = true});
    check_collectives(*world, device);
    world->barrier();
    CHECK(world->gather("a") == std::vector<std::string>{"a"});
    check_collectives(*world->split(0), device);
  }
}

}  // namespace
}  // namespace plimsoll::runtime

int main(int argc, char** argv) {
  const std::string why = plimsoll::runtime::why_no_cuda(0);
  if (!why.empty()) {
    std::fprintf(stderr, "skipped: %s\n", why.c_str());
    return 77;  // Meson: skipped
  }
  doctest::Context context(argc, argv);
  // Counted as skipped (tools/count_tests.py).
  if (plimsoll::runtime::comm::nccl_version().empty())
    context.addFilter("test-case-exclude", "NCCL*");
  return context.run();
}
