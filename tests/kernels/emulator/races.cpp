#include "tests/kernels/emulator/races.h"

#include <cstdio>
#include <utility>
#include <vector>

#include "tests/kernels/emulator/fibers.h"

namespace plimsoll::emulator {

thread_local Running now;

namespace {

constexpr int kWarp = 32;
constexpr std::size_t kGranule = 1;  // bytes: the smallest storage type, of moments in 8 bits

// Who did it last. `who`: of accesses of the same kind since the last barrier, so that a later
// write is held against all of them.
enum class Who : std::uint8_t { nobody, thread, warp, block, several_blocks };
struct Done {
  std::uint32_t launch = 0, block = 0, block_epoch = 0, warp_epoch = 0;
  std::int16_t thread = 0;
  Who who = Who::nobody;
  bool atomic = false;
};
struct Cell {
  std::uintptr_t key = 0;  // the granule; of shared memory, launch and block, all else is old
  Done write, read;
};

// Of memory that is not shared: open addressing, never emptied (a launch's number tells what is
// old), grown at half its size.
class Cells {
 public:
  Cell& operator[](std::uintptr_t key) {
    if (2 * used_ >= cells_.size()) grow();
    Cell& cell = *place(cells_, key);
    if (cell.key == 0) ++used_, cell.key = key;
    return cell;
  }

 private:
  static Cell* place(std::vector<Cell>& cells, std::uintptr_t key) {
    std::size_t i = key * 0x9e3779b97f4a7c15u >> 20;
    for (;; ++i) {
      Cell& cell = cells[i & (cells.size() - 1)];
      if (cell.key == 0 || cell.key == key) return &cell;
    }
  }
  void grow() {
    std::vector<Cell> larger(2 * cells_.size());
    used_ = 0;
    for (const Cell& cell : cells_)
      if (cell.key != 0 && (cell.write.launch == now.launch || cell.read.launch == now.launch))
        *place(larger, cell.key) = cell, ++used_;
    cells_.swap(larger);
  }
  std::vector<Cell> cells_ = std::vector<Cell>(1 << 16);
  std::size_t used_ = 0;
};

Cells global;
std::vector<Cell> dynamic_cells(kMostShared / kGranule);
std::vector<Cell> static_cells(static_shared_range().bytes() / kGranule + 1);
char message[200];
bool raced = false;

void note(const char* what, const Done& before, const char* memory, std::uintptr_t offset) {
  if (raced) return;
  raced = true;
  std::snprintf(message, sizeof(message),
                "%s: %s memory at %#lx, block %u thread %d, after block %u thread %d", what, memory,
                static_cast<unsigned long>(offset), now.block, now.thread, before.block,
                before.thread);
}

bool same_warp(const Done& d) {
  return d.thread / kWarp == now.thread / kWarp;
}

// Whether what was done comes before what the running thread does now.
bool ordered(const Done& d) {
  if (d.who == Who::nobody || d.launch != now.launch) return true;
  if (d.who == Who::several_blocks || d.block != now.block) return false;
  if (d.block_epoch < now.block_epoch) return true;
  if (d.who == Who::thread && d.thread == now.thread) return true;
  return d.who <= Who::warp && same_warp(d) && d.warp_epoch < now.warp_epoch;
}

Done mine(bool atomic) {
  return {now.launch,
          now.block,
          now.block_epoch,
          now.warp_epoch,
          static_cast<std::int16_t>(now.thread),
          Who::thread,
          atomic};
}

// The access joins those since the last barrier.
void join(Done& d, bool atomic) {
  if (d.who == Who::nobody || d.launch != now.launch) {
    d = mine(atomic);
  } else if (d.who == Who::several_blocks || d.block != now.block) {
    d.who = Who::several_blocks;
  } else if (d.block_epoch < now.block_epoch) {
    d = mine(atomic);
  } else if (!same_warp(d)) {
    d.who = Who::block;
  } else if (d.who <= Who::warp) {
    const bool alone =
        d.warp_epoch < now.warp_epoch || (d.who == Who::thread && d.thread == now.thread);
    d = mine(atomic);
    if (!alone) d.who = Who::warp;
  }
}

void touch(Cell& cell, Access kind, bool shared, const char* memory, std::uintptr_t offset) {
  const std::uintptr_t of_block = std::uintptr_t{now.launch} << 32 | now.block;
  if (shared && cell.key != of_block) cell = {of_block, {}, {}};
  const bool atomic = kind == Access::atomic;
  if (shared && kind == Access::read && cell.write.who == Who::nobody)
    note("read before anything is written", cell.write, memory, offset);
  if (!(atomic && cell.write.atomic) && !ordered(cell.write))
    note(kind == Access::read ? "read without a barrier after a write"
                              : "write without a barrier after a write",
         cell.write, memory, offset);
  if (kind == Access::read) return join(cell.read, false);
  if (!ordered(cell.read)) note("write without a barrier after a read", cell.read, memory, offset);
  if (atomic)
    join(cell.write, true);
  else
    cell.write = mine(false);
}

bool on_stack(const void* at) {
  const auto* from = static_cast<const std::byte*>(at);
  return from >= now.stack && from < now.stack + now.stack_bytes;
}

}  // namespace

void access(const void* at, std::size_t bytes, Access kind) {
  if (now.thread < 0 || raced || on_stack(at)) return;
  const auto* from = static_cast<const std::byte*>(at);
  if (is_exchange(from)) return;
  const SharedRange whole = dynamic_shared_range(), own = static_shared_range();
  const auto visit = [&](auto&& cell_of, bool shared, const char* memory, std::uintptr_t offset) {
    for (std::uintptr_t g = offset / kGranule; g <= (offset + bytes - 1) / kGranule; ++g)
      touch(cell_of(g), kind, shared, memory, g * kGranule);
  };
  if (from >= whole.begin && from < whole.end) {
    visit([](std::uintptr_t g) -> Cell& { return dynamic_cells[g]; }, true, "dynamic shared",
          static_cast<std::uintptr_t>(from - whole.begin));
  } else if (from >= own.begin && from < own.end) {
    visit([](std::uintptr_t g) -> Cell& { return static_cells[g]; }, true, "static shared",
          static_cast<std::uintptr_t>(from - own.begin));
  } else {
    visit([](std::uintptr_t g) -> Cell& { return global[g]; }, false, "device",
          reinterpret_cast<std::uintptr_t>(from));
  }
}

// Not of a thread's own variables, which a GPU has in registers: GCC calls an access of 16 bytes
// aligned where it knows of 8.
void aligned_access(const void* at, std::size_t bytes, Access kind) {
  if (now.thread >= 0 && !on_stack(at) && reinterpret_cast<std::uintptr_t>(at) % bytes != 0)
    note("an address that is not aligned", mine(false), "some",
         reinterpret_cast<std::uintptr_t>(at));
  access(at, bytes, kind);
}

const char* take_race() {
  return std::exchange(raced, false) ? message : nullptr;
}

}  // namespace plimsoll::emulator

// What -fsanitize=thread calls (GCC, gcc/sanitizer.def).
using plimsoll::emulator::Access;
using plimsoll::emulator::access;
using plimsoll::emulator::aligned_access;
extern "C" {
#define ACCESSES(bytes)                          \
  void __tsan_read##bytes(void* at) {            \
    aligned_access(at, bytes, Access::read);     \
  }                                              \
  void __tsan_write##bytes(void* at) {           \
    aligned_access(at, bytes, Access::write);    \
  }                                              \
  void __tsan_unaligned_read##bytes(void* at) {  \
    access(at, bytes, Access::read);             \
  }                                              \
  void __tsan_unaligned_write##bytes(void* at) { \
    access(at, bytes, Access::write);            \
  }
ACCESSES(1)
ACCESSES(2)
ACCESSES(4)
ACCESSES(8)
ACCESSES(16)
void __tsan_read_range(void* at, std::size_t bytes) {
  access(at, bytes, Access::read);
}
void __tsan_write_range(void* at, std::size_t bytes) {
  access(at, bytes, Access::write);
}
void __tsan_init() {}
void __tsan_func_entry(void*) {}
void __tsan_func_exit(void*) {}
void __tsan_vptr_update(void**, void*) {}
void __tsan_vptr_read(void**) {}
// Of the host's code around the kernels: static locals, tests.
#define ATOMICS(bits, Value)                                                \
  Value __tsan_atomic##bits##_load(const volatile Value* at, int) {         \
    return __atomic_load_n(at, __ATOMIC_SEQ_CST);                           \
  }                                                                         \
  Value __tsan_atomic##bits##_fetch_add(volatile Value* at, Value n, int) { \
    return __atomic_fetch_add(at, n, __ATOMIC_SEQ_CST);                     \
  }
ATOMICS(8, std::uint8_t)
ATOMICS(32, std::uint32_t)
ATOMICS(64, std::uint64_t)
}
