// An out-of-memory error as data: what a log says, figure by figure, and nothing else.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "models/base/quantity.h"

namespace plimsoll::reports {

// A size as it was printed: PyTorch's format_size() rounds to two decimals of its unit, so what was
// meant is up to `margin` more or less.
struct PrintedSize {
  Bytes bytes, margin;
  bool operator==(const PrintedSize&) const = default;
  bool may_be(Bytes exact) const { return exact >= bytes - margin && exact <= bytes + margin; }
};

enum class OomKind : std::uint8_t {
  allocator,  // PyTorch's caching allocator: "CUDA out of memory. Tried to allocate …"
  async_allocator,  // its cudaMallocAsync backend: "Allocation on device 0 would exceed …"
  overflow,  // "Tried to allocate more than 1EB memory": no size at all
  driver,  // "CUDA error: out of memory": outside PyTorch's allocator
  nccl,
  library,  // cuBLAS, cuDNN, bitsandbytes …
  host,  // the machine's own memory
};
const char* name_of(OomKind kind);

struct OomProcess {
  std::int64_t pid = 0;
  PrintedSize in_use;
  bool operator==(const OomProcess&) const = default;
};

struct OomMessage {
  OomKind kind = OomKind::allocator;
  std::string device;  // as printed: "CUDA", "HIP", "XPU", …; "" where it is not said
  std::string library;  // "NCCL", "CUBLAS_STATUS_ALLOC_FAILED", …
  std::int64_t line = 1;  // of the input, from 1
  std::string time;  // "2024-06-26 17:06:52,697" where its line begins with one
  std::optional<std::int64_t> rank, gpu;
  std::optional<PrintedSize> tried;
  std::optional<PrintedSize> capacity, free, allocated;
  std::optional<PrintedSize> reserved;  // in total: wordings before PyTorch 2.1
  std::optional<PrintedSize> unallocated;  // reserved beyond what is allocated: since 2.1
  std::optional<PrintedSize> in_use;  // by this process, with what is not PyTorch's
  std::optional<PrintedSize> allowed;  // by set_per_process_memory_fraction()
  std::optional<PrintedSize> private_pools;  // of what is allocated
  std::vector<OomProcess> processes;  // "Process 123 has …"
  std::vector<std::string> unreadable;  // figures that are no sizes, as they stand
  // Whether the wording is older than PyTorch 2.1, which brought expandable segments.
  bool is_old() const { return reserved.has_value(); }
};

// Messages that ask for the same in the same way, usually one from each rank.
struct OomGroup {
  OomKind kind = OomKind::allocator;
  std::string library;
  std::optional<PrintedSize> tried;
  std::int64_t times = 0;
  std::vector<std::int64_t> ranks, gpus;  // as far as they are said, each once, some at most
};

struct OomLog {
  std::int64_t messages = 0;
  // The first in time: by the times on their lines where each has one, else in the input.
  std::optional<OomMessage> first;
  std::vector<OomGroup> groups;  // in the order of the input, some at most
  std::int64_t ungrouped = 0;  // messages beyond those
  std::int64_t flushes = 0;  // DeepSpeed's warnings of "allocator cache flushes since last step"
};

}  // namespace plimsoll::reports
