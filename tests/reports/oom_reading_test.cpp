#include "reports/oom/reading.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <string>

#include "reports/oom/scanner.h"

namespace plimsoll::tests {

using reports::OomCause;
using reports::OomReading;

namespace {

OomReading reading(std::string_view text) {
  reports::OomScanner scanner;
  scanner.feed(text);
  scanner.finish();
  REQUIRE(scanner.log().first);
  return reports::read_cause(*scanner.log().first);
}

bool offers(const OomReading& reading, std::string_view change) {
  return std::ranges::any_of(reading.ways, [&](const reports::OomWay& way) {
    return way.change.find(change) != std::string::npos;
  });
}

}  // namespace

// 388.00 - 340.94 MiB = 47.06 MiB missing; 30.39 - 28.42 GiB = 1.97 GiB in the cache; of 31.75 GiB
// 31.75 - 30.39 - 340.94/1024 = 1.027 GiB are elsewhere: a context and NCCL.
TEST_CASE("more in the cache than was asked for is fragmentation") {
  const OomReading r = reading(
      "CUDA out of memory. Tried to allocate 388.00 MiB (GPU 3; 31.75 GiB total capacity; 28.42 "
      "GiB "
      "already allocated; 340.94 MiB free; 30.39 GiB reserved in total by PyTorch)");
  CHECK(r.cause == OomCause::fragmentation);
  CHECK(r.unallocated == Bytes(32631014031 - 30515742638));
  CHECK(r.missing == Bytes(406847488 - 357501501));
  CHECK(r.elsewhere == Bytes(34091302912 - 357501501 - 32631014031));
  CHECK_FALSE(r.in_use);
  CHECK(offers(r, "max_split_size_mb"));
  CHECK(r.ways.front().enough);
}

TEST_CASE("another process held what was missing") {
  const OomReading r = reading(
      "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 238.00 MiB. GPU 0 has a total "
      "capacity of 22.05 GiB of which 10.81 MiB is free. Process 43872 has 4.97 GiB memory in use. "
      "Including non-PyTorch memory, this process has 17.05 GiB memory in use. Of the allocated "
      "memory 15.43 GiB is allocated by PyTorch, and 107.00 MiB is reserved by PyTorch but "
      "unallocated.");
  CHECK(r.cause == OomCause::other_processes);
  CHECK(r.others == Bytes(5336496865));
  CHECK(r.own_outside == Bytes(18307298099 - 16567836344) - 107_MiB);
  CHECK(offers(r, "43872"));
  CHECK_FALSE(offers(r, "expandable_segments"));  // 107 + 10.81 MiB would not have done
}

// In a container: 22.29 GiB are this process, by 21.92 GiB + 16.47 MiB that PyTorch has reserved.
TEST_CASE("a process that is listed by number is this one, by its size") {
  const OomReading r = reading(
      "CUDA out of memory. Tried to allocate 14.00 MiB. GPU 0 has a total capacity of 22.30 GiB of "
      "which 4.69 MiB is free. Process 860120 has 22.29 GiB memory in use. Of the allocated memory "
      "21.92 GiB is allocated by PyTorch, with 22.00 MiB allocated in private pools (e.g., CUDA "
      "Graphs), and 3.00 MiB is reserved by PyTorch but unallocated.");
  CHECK(r.in_use_inferred);
  CHECK(r.others == 0_B);
  CHECK(r.cause == OomCause::need);
  CHECK_FALSE(offers(r, "860120"));
}

// github.com/hiyouga/LlamaFactory/issues/4652: 16.98 GiB is another job; 14.72 is named as this
// one.
TEST_CASE("two processes, of which none can be told to be this one") {
  const OomReading r = reading(
      "CUDA out of memory. Tried to allocate 270.00 MiB. GPU 0 has a total capacity of 31.73 GiB "
      "of "
      "which 24.69 MiB is free. Process 1 has 15.00 GiB memory in use. Process 2 has 15.50 GiB "
      "memory in use. Of the allocated memory 14.41 GiB is allocated by PyTorch, and 11.15 MiB is "
      "reserved by PyTorch but unallocated.");
  CHECK_FALSE(r.in_use);
  CHECK(r.others == Bytes(16106127360 + 16642998272));
}

TEST_CASE("one request larger than the whole card, or than the process may have") {
  CHECK(
      reading("CUDA out of memory. Tried to allocate 134744072.03 GiB (GPU 1; 23.69 GiB total "
              "capacity; 5.64 GiB already allocated; 16.84 GiB free; 5.65 GiB reserved in total by "
              "PyTorch)")
          .cause == OomCause::larger_than_card);
  CHECK(
      reading("CUDA out of memory. Tried to allocate 7.00 GiB. GPU 0 has a total capacity of 8.00 "
              "GiB of which 7.50 GiB is free. 6.40 GiB allowed; Of the allocated memory 0 bytes is "
              "allocated by PyTorch, and 0 bytes is reserved by PyTorch but unallocated.")
          .cause == OomCause::larger_than_card);
}

TEST_CASE("a limit, and room that was refused") {
  const OomReading limit = reading(
      "CUDA out of memory. Tried to allocate 1024.00 MiB. GPU 0 has a total capacity of 8.00 GiB "
      "of "
      "which 2.00 GiB is free. 6.40 GiB allowed; Of the allocated memory 6.00 GiB is allocated by "
      "PyTorch, and 0 bytes is reserved by PyTorch but unallocated.");
  CHECK(limit.cause == OomCause::limit);
  CHECK(offers(limit, "larger fraction"));
  CHECK(
      reading("CUDA out of memory. Tried to allocate 654.00 MiB. GPU 0 has a total capacity of "
              "23.52 GiB of which 22.96 GiB is free. Of the allocated memory 5.51 MiB is allocated "
              "by PyTorch, and 0 bytes is reserved by PyTorch but unallocated.")
          .cause == OomCause::room_elsewhere);
}

// github.com/lm-sys/FastChat/issues/390, read off a screen: 37.64 lost its point.
TEST_CASE("a figure that the card cannot hold is left out, and said") {
  const OomReading r = reading(
      "OutofMemoryError: CUDA out of memory. Tried t allocate 388.00 MiB (GPV 0; 39.43 GiB total "
      "capacity; 37.42 GiB already allocated; 126.25 MiBfree; 3764 GiB reserved in total by "
      "Pyorch)");
  CHECK(r.cause == OomCause::need);
  CHECK_FALSE(r.reserved);
  REQUIRE(r.doubts.size() == 1);
  CHECK(r.doubts[0].find("3764 GiB") == std::string::npos);  // as bytes_text writes it
  CHECK(r.doubts[0].find("3.68 TiB") != std::string::npos);
}

// torch.xpu's wording does not say what was free.
TEST_CASE("without what was free") {
  const std::string head =
      "XPU out of memory. Tried to allocate 20.00 MiB. GPU 0 has a total capacity of 15.56 GiB. Of "
      "the allocated memory 15.00 GiB is allocated by PyTorch, and ";
  const std::string tail = " is reserved by PyTorch but unallocated.";
  CHECK(reading(head + "10.00 MiB" + tail).cause == OomCause::need);
  CHECK(reading(head + "30.00 MiB" + tail).cause == OomCause::fragmentation);
  CHECK(reading(head.substr(0, 70)).cause == OomCause::unknown);
  // More free than there is: as if it were not said.
  const OomReading doubtful = reading(
      "CUDA out of memory. Tried to allocate 20.00 MiB (GPU 0; 8.00 GiB total capacity; 7.00 GiB "
      "already allocated; 900.00 GiB free; 7.50 GiB reserved in total by PyTorch)");
  CHECK(doubtful.doubts.size() == 1);
  CHECK_FALSE(doubtful.missing);
}

TEST_CASE("kinds without figures have a cause and something to try") {
  for (const std::string_view text :
       {"CUDA error: out of memory", "Cuda failure 2 'out of memory'", "CUBLAS_STATUS_ALLOC_FAILED",
        "cuMemCreate failed: CUDA_ERROR_OUT_OF_MEMORY"}) {
    const OomReading r = reading(text);
    CHECK(r.cause == OomCause::outside);
    CHECK(offers(r, "set_per_process_memory_fraction"));
  }
  CHECK(reading("Tried: CUDA out of memory. Tried to allocate more than 1EB memory.").cause ==
        OomCause::overflow);
  CHECK(reading("not enough memory: you tried to allocate 8 bytes").cause == OomCause::host);
  CHECK(reading("torch.OutOfMemoryError: CUDA out of memory.").cause == OomCause::unknown);
}

}  // namespace plimsoll::tests
