// What devices are made of, as far as no GPU is needed.
#include <doctest/doctest.h>

#include <utility>
#include <vector>

#include "runtime/device_cuda.h"
#include "runtime/growing_region.h"

namespace plimsoll::runtime {
namespace {

// A driver that maps nothing and writes down what it was asked.
struct Asked {
  std::vector<std::pair<std::int64_t, std::int64_t>> mapped;  // offset, bytes
  std::int64_t reserved = 0;
  int released = 0;
};

class FakeDriver final : public VirtualMemory {
 public:
  FakeDriver(Asked& asked, std::int64_t capacity) : asked_(asked), capacity_(capacity) {}
  std::int64_t granularity() const override { return 1000; }
  std::int64_t capacity() const override { return capacity_; }
  std::byte* reserve(std::int64_t bytes) override {
    asked_.reserved = bytes;
    return base();
  }
  bool map(std::byte* at, std::int64_t bytes) override {
    if (bytes > free_bytes()) return false;
    asked_.mapped.emplace_back(at - base(), bytes);
    used_ += bytes;
    return true;
  }
  std::int64_t free_bytes() const override { return capacity_ - used_; }
  void release(std::byte* base_address, std::int64_t) noexcept override {
    asked_.released += base_address == base() ? 1 : 0;
  }

 private:
  std::byte* base() { return memory_; }
  Asked& asked_;
  std::int64_t capacity_, used_ = 0;
  std::byte memory_[1]{};
};

TEST_CASE("a region maps whole granules behind what it has, and gives all back at its end") {
  Asked asked;
  {
    const auto region = growing_region(std::make_unique<FakeDriver>(asked, 10'000), Bytes(4500));
    CHECK(asked.reserved == 5000);  // 4500 rounded up to granules of 1000
    CHECK(asked.mapped.empty());
    std::byte* base = region->base();
    region->grow(Bytes(1));
    region->grow(Bytes(1000));  // there already
    region->grow(Bytes(3001));
    CHECK(asked.mapped ==
          std::vector<std::pair<std::int64_t, std::int64_t>>{{0, 1000}, {1000, 3000}});
    CHECK(region->base() == base);
    CHECK(asked.released == 0);
  }
  CHECK(asked.released == 1);
}

TEST_CASE(
    "a region reserves no more addresses than the device has memory, and one granule at least") {
  Asked asked;
  growing_region(std::make_unique<FakeDriver>(asked, 10'500), Bytes(std::int64_t{1} << 42));
  CHECK(asked.reserved == 11'000);
  growing_region(std::make_unique<FakeDriver>(asked, 10'500), Bytes(1));
  CHECK(asked.reserved == 1000);
}

TEST_CASE("a device without room says what is free, and what was mapped before stays") {
  Asked asked;
  const auto region = growing_region(std::make_unique<FakeDriver>(asked, 3000), Bytes(9000));
  region->grow(Bytes(2000));
  try {
    region->grow(Bytes(3001));
    FAIL("grew beyond the device");
  } catch (const Error& error) {
    CHECK(error.kind() == ErrorKind::out_of_memory);
    CHECK(error.message().find("no room for 2000 B beyond the 2000 B of this rank: 1000 of 3000 B "
                               "are free") != std::string::npos);
  }
  region->grow(Bytes(3000));
  CHECK(asked.mapped.back() == std::pair<std::int64_t, std::int64_t>{2000, 1000});
}

TEST_CASE("a machine without a GPU says what is missing, and what needs none") {
  const std::string why = why_no_cuda(0);
  if (why.empty()) return;  // there is one: tests/runtime/gpu_test.cpp uses it
  const bool says = why.starts_with("no ") || why.starts_with("this build has no CUDA");
  CHECK(says);
  try {
    cuda_device(0);
    FAIL("a device that is not there");
  } catch (const Error& error) {
    CHECK(error.kind() == ErrorKind::device);
    CHECK(error.message() == why);
  }
}

TEST_CASE("no machine has a GPU of a negative number") {
  CHECK(why_no_cuda(-1) != "");
}

}  // namespace
}  // namespace plimsoll::runtime
