#include "runtime/memory.h"

#include <cstring>

#include <doctest/doctest.h>

#include "runtime/worker.h"

namespace plimsoll::runtime {
namespace {

using models::Category;
using models::Phase;

Tensor bytes(Memory& memory, const char* name, std::int64_t n) {
  return memory.allocate(name, Category::activations, DType::uint8, {n});
}

std::int64_t address(Tensor& base, Tensor& tensor) {
  return static_cast<std::byte*>(tensor.view().data) - static_cast<std::byte*>(base.view().data);
}

TEST_CASE("blocks are multiples of 256 B and start at the lowest address at which they fit") {
  Memory memory(host_device(), 0, {});
  Tensor a = bytes(memory, "a", 1), b = bytes(memory, "b", 257), c = bytes(memory, "c", 256);
  CHECK(address(a, b) == 256);
  CHECK(address(a, c) == 768);
  CHECK(memory.reserved() == 1024_B);
  b.reset();
  Tensor d = bytes(memory, "d", 513);  // 768: the hole has 512
  CHECK(address(a, d) == 1024);
  Tensor e = bytes(memory, "e", 100), f = bytes(memory, "f", 200);
  CHECK(address(a, e) == 256);
  CHECK(address(a, f) == 512);
  CHECK(memory.reserved() == 1792_B);
  CHECK(memory.ledger().live() == Bytes(1 + 256 + 513 + 100 + 200));
}

TEST_CASE("holes side by side become one, and a hole at the end goes back to the end") {
  Memory memory(host_device(), 0, {});
  Tensor a = bytes(memory, "a", 256), b = bytes(memory, "b", 256), c = bytes(memory, "c", 256),
         d = bytes(memory, "d", 256), e = bytes(memory, "e", 256);
  b.reset();
  d.reset();
  c.reset();
  Tensor f = bytes(memory, "f", 768);
  CHECK(address(a, f) == 256);
  e.reset();
  f.reset();
  Tensor g = bytes(memory, "g", 2048);
  CHECK(address(a, g) == 256);
  CHECK(memory.reserved() == 2304_B);
}

TEST_CASE("a tensor of no elements is none and takes nothing") {
  Memory memory(host_device(), 0, {});
  CHECK_FALSE(memory.allocate("none", Category::activations, DType::fp32, {0, 8}));
  CHECK(memory.reserved() == 0_B);
}

TEST_CASE(
    "memory that is used up is an error that names the tensor, its shape, the op and what lives") {
  Worker worker(host_device(), 3, {.limit = 1024_B});
  Tensor kept = worker.memory.allocate("weights", Category::parameters, DType::fp32, {8, 16});
  std::string message;
  try {
    worker.prefix = "layers.2.";
    Op op(worker, "mlp.act");
    op.make("mlp.product", Category::activations, DType::bf16, {4, 65});  // 520 B: 768
  } catch (const Error& error) {
    CHECK(error.kind() == ErrorKind::out_of_memory);
    message = error.message();
  }
  CHECK(message ==
        "rank 3: no room for layers.2.mlp.product [4, 65] bf16, 520 B, in op layers.2.mlp.act; "
        "512 of 1024 B are in use:\n  512 B  weights [8, 16] fp32\n");
  CHECK(worker.memory.reserved() == 512_B);
}

// Gives at most `most` addresses at a time, as under `ulimit -v`.
class FewAddresses : public Device {
 public:
  explicit FewAddresses(std::int64_t most, ErrorKind kind = ErrorKind::out_of_memory)
      : most_(most), kind_(kind) {}
  std::vector<std::int64_t> asked;

  models::Device kind() const override { return host_device().kind(); }
  std::string name() const override { return host_device().name(); }
  const kernels::KernelTable& kernels() const override { return host_device().kernels(); }
  std::unique_ptr<Region> reserve(Bytes bytes) override {
    asked.push_back(bytes.value());
    check(bytes.value() <= most_, kind_, "so many addresses there are not");
    return host_device().reserve(bytes);
  }
  void copy(void* to, const void* from, Bytes bytes) override {
    host_device().copy(to, from, bytes);
  }
  void copy_in(void* to, const void* host, Bytes bytes) override {
    host_device().copy_in(to, host, bytes);
  }
  void copy_out(void* host, const void* from, Bytes bytes) override {
    host_device().copy_out(host, from, bytes);
  }
  void fill_bytes(void* to, unsigned char value, Bytes bytes) override {
    host_device().fill_bytes(to, value, bytes);
  }
  void synchronize() override {}
  std::unique_ptr<Stopwatch> stopwatch() override { return host_device().stopwatch(); }

 private:
  std::int64_t most_;
  ErrorKind kind_;
};

TEST_CASE(
    "where addresses are scarce an arena takes a quarter of what there is; that is its limit") {
  // 4 TiB = 2^42, 2^41, … 2^32, the first of at most 5 GiB; then a quarter of that.
  FewAddresses device(std::int64_t{5} << 30);
  Memory memory(device, 0, {});
  CHECK(device.asked.size() == 12);
  CHECK(device.asked.front() == std::int64_t{1} << 42);
  CHECK(device.asked[10] == std::int64_t{1} << 32);
  CHECK(device.asked.back() == std::int64_t{1} << 30);
  Tensor a = bytes(memory, "a", 1000);
  CHECK(a);
  // The rest of the GiB, and a byte more.
  try {
    (void)bytes(memory, "b", (std::int64_t{1} << 30) - 1024 + 1);
    CHECK(false);
  } catch (const Error& error) {
    CHECK(error.kind() == ErrorKind::out_of_memory);
    CHECK(error.message().find("1024 of 1073741824 B are in use") != std::string::npos);
  }
  Arena small(device, 1000_B);  // what is asked for is not more than what is needed
  CHECK(device.asked.back() == 1000);
  CHECK(small.limit() == 1000_B);
}

// Has addresses for all, and memory behind the first `most` bytes.
class ScarceRegion final : public Region {
 public:
  ScarceRegion(std::unique_ptr<Region> addresses, Bytes most)
      : addresses_(std::move(addresses)), most_(most) {}
  std::byte* base() const override { return addresses_->base(); }
  void grow(Bytes bytes) override {
    check(bytes <= most_, ErrorKind::out_of_memory, "the device has no more");
  }

 private:
  std::unique_ptr<Region> addresses_;
  Bytes most_;
};
class ScarceMemory final : public FewAddresses {
 public:
  ScarceMemory() : FewAddresses(std::int64_t{1} << 42) {}
  std::unique_ptr<Region> reserve(Bytes bytes) override {
    return std::make_unique<ScarceRegion>(FewAddresses::reserve(bytes), 1024_B);
  }
};

TEST_CASE("a device that is full below our own limit is an error that names the tensor too") {
  ScarceMemory device;
  Memory memory(device, 1, {.limit = 4096_B});
  Tensor a = bytes(memory, "a", 1000);
  try {
    (void)bytes(memory, "b", 1);
    CHECK(false);
  } catch (const Error& error) {
    CHECK(error.kind() == ErrorKind::out_of_memory);
    CHECK(error.message() ==
          "rank 1: no room for b [1] uint8, 1 B; 1024 of 4096 B are in use (the device has no "
          "more):\n  1000 B  a [1000] uint8\n");
  }
  a.reset();
  CHECK(bytes(memory, "b", 1));  // nothing is lost by the refusal
}

TEST_CASE("a device without any addresses, and one that fails otherwise, say so") {
  FewAddresses none((std::int64_t{64} << 20) - 1);
  CHECK_THROWS_AS(Memory(none, 0, {}), Error);
  CHECK(none.asked.back() == std::int64_t{64} << 20);
  FewAddresses broken(0, ErrorKind::device);
  CHECK_THROWS_AS(Memory(broken, 0, {}), Error);
  CHECK(broken.asked.size() == 1);
}

TEST_CASE("poisoned memory is NaN before it is written and again after its death") {
  Memory memory(host_device(), 0, {.poison = true});
  Tensor a = memory.allocate("a", Category::activations, DType::fp32, {2});
  auto* values = static_cast<float*>(a.view().data);
  CHECK(values[1] != values[1]);
  values[1] = 1;
  a.reset();
  CHECK(values[1] != values[1]);
}

TEST_CASE("the ledger has every tensor with birth and death, and what each op had at its worst") {
  Worker worker(host_device(), 0, {});
  Ledger& ledger = worker.memory.ledger();
  Tensor weights = worker.memory.allocate("w", Category::parameters, DType::uint8, {1000});
  worker.prefix = "layers.0.";
  ledger.begin_step();
  Tensor x;
  {
    Op op(worker, "a");
    x = op.make("x", Category::activations, DType::uint8, {100});
  }
  Tensor y;
  {
    Op op(worker, "b", Phase::backward);
    y = op.make("y", Category::temporaries, DType::uint8, {30});
    op.consume(std::move(x));
  }
  { Op op(worker, "c"); }
  y.reset();  // late: between two ops
  { Op op(worker, "d"); }
  const StepRecord step = ledger.end_step();
  CHECK(step.resident == 1000_B);
  REQUIRE(step.tensors.size() == 3);
  CHECK(step.tensors[0] == TensorRecord{"w", Category::parameters, 1000_B, kBeforeStep});
  CHECK(step.tensors[1] == TensorRecord{"layers.0.x", Category::activations, 100_B, 0, 1});
  CHECK(step.tensors[2] == TensorRecord{"layers.0.y", Category::temporaries, 30_B, 1, 3});
  REQUIRE(step.ops.size() == 4);
  CHECK(step.ops[0] == OpRecord{"layers.0.a", Phase::forward, 1100_B, 1100_B});
  CHECK(step.ops[1] == OpRecord{"layers.0.b", Phase::backward, 1030_B, 1130_B});
  CHECK(step.ops[2] == OpRecord{"layers.0.c", Phase::forward, 1030_B, 1030_B});
  CHECK(step.ops[3] == OpRecord{"layers.0.d", Phase::forward, 1000_B, 1000_B});
  CHECK(step.peak == 1130_B);
  CHECK(step.peak_op == 1);
  CHECK(step.at_peak[static_cast<std::size_t>(Category::temporaries)] == 30_B);
  CHECK(reports::sum(step.at_peak) == step.peak);
}

// 100 bytes live in op a and again in op c; op b has 60, op d 90.
TEST_CASE("the peak is of the first op that reached it") {
  Worker worker(host_device(), 0, {});
  Ledger& ledger = worker.memory.ledger();
  ledger.begin_step();
  for (const auto& [name, bytes] :
       {std::pair{"b", std::int64_t{60}}, {"a", 100}, {"c", 100}, {"d", 90}}) {
    Op op(worker, name);
    op.consume(op.make("x", Category::temporaries, DType::uint8, {bytes}));
  }
  const StepRecord step = ledger.end_step();
  REQUIRE(step.ops.size() == 4);
  CHECK(step.peak == 100_B);
  CHECK(step.peak_op == 1);
}

TEST_CASE("more workspace than there is, and ops inside ops, are errors") {
  Worker worker(host_device(), 0, {});
  CHECK_THROWS_AS(worker.scratch(DType::fp32, {1}), Error);
  worker.workspace = worker.memory.allocate("workspace", Category::workspace, DType::uint8, {64});
  CHECK(worker.scratch(DType::fp32, {4, 4}).elements() == 16);
  CHECK(worker.scratch_after(32_B, DType::fp32, {8}).elements() == 8);
  CHECK_THROWS_AS(worker.scratch(DType::fp32, {17}), Error);
  Op op(worker, "outer");
  CHECK_THROWS_AS(Op(worker, "inner"), Error);
}

}  // namespace
}  // namespace plimsoll::runtime
