#include "tests/kernels/emulator/fibers.h"

#include <setjmp.h>
#include <ucontext.h>

#include <cstdio>
#include <cstdlib>
#include <memory>
#include <vector>

dim3 threadIdx, blockIdx, blockDim, gridDim;

namespace plimsoll::emulator {

bool backwards = false;

namespace {

constexpr std::size_t kStack = 64 << 10;
constexpr int kWarp = 32;
enum class State { ready, at_block_barrier, at_warp_barrier, done };

// A context begins a fiber; from then on jumps switch, which cost no system call.
struct Fiber {
  ucontext_t context;
  jmp_buf where;
  bool begun = false;
  std::unique_ptr<std::byte[]> stack = std::make_unique<std::byte[]>(kStack);
  State state = State::done;
  dim3 index;
};

std::vector<std::unique_ptr<Fiber>> fibers;  // kept from block to block
int count = 0;  // of the block that runs
int running = 0;
ucontext_t first_scheduler;
jmp_buf scheduler;
const std::function<void()>* body = nullptr;
alignas(16) std::byte shared[kMostShared];
alignas(16) std::byte slots[1024][32];

struct Copy {
  void* to;
  const void* from;
  bool there;
};
std::vector<Copy> copies[1024];  // of each thread

[[noreturn]] void give_up(const char* op, const char* why) {
  std::fprintf(stderr, "emulator: %s: %s\n", op, why);
  std::abort();
}

void enter() {
  (*body)();
  fibers[static_cast<std::size_t>(running)]->state = State::done;
  _longjmp(scheduler, 1);
}

void yield(State state) {
  Fiber& self = *fibers[static_cast<std::size_t>(running)];
  self.state = state;
  if (_setjmp(self.where) == 0) _longjmp(scheduler, 1);
}

void resume(Fiber& f) {
  threadIdx = f.index;
  if (_setjmp(scheduler) != 0) return;
  if (f.begun) _longjmp(f.where, 1);
  f.begun = true;
  swapcontext(&first_scheduler, &f.context);
}

void begin_block() {
  std::memset(shared, 0xff, sizeof(shared));
  for (int t = 0; t < count; ++t) {
    if (static_cast<int>(fibers.size()) == t) fibers.push_back(std::make_unique<Fiber>());
    Fiber& f = *fibers[static_cast<std::size_t>(t)];
    const auto at = static_cast<unsigned>(t);
    f.index = dim3(at % blockDim.x, at / blockDim.x % blockDim.y, at / (blockDim.x * blockDim.y));
    f.state = State::ready;
    f.begun = false;
    getcontext(&f.context);
    f.context.uc_stack.ss_sp = f.stack.get();
    f.context.uc_stack.ss_size = kStack;
    f.context.uc_link = nullptr;
    makecontext(&f.context, enter, 0);
  }
}

// Whether all of [first, last) wait at `barrier`; then they are let through.
bool release(int first, int last, State barrier) {
  for (int t = first; t < last; ++t)
    if (fibers[static_cast<std::size_t>(t)]->state != barrier) return false;
  for (int t = first; t < last; ++t) fibers[static_cast<std::size_t>(t)]->state = State::ready;
  return true;
}

bool all_done() {
  for (int t = 0; t < count; ++t)
    if (fibers[static_cast<std::size_t>(t)]->state != State::done) return false;
  return true;
}

// Runs the lanes of a warp until all have ended or wait for other warps.
void run_warp(int first, int last) {
  do {
    for (int i = first; i < last; ++i) {
      running = backwards ? last - 1 - (i - first) : i;
      Fiber& f = *fibers[static_cast<std::size_t>(running)];
      if (f.state != State::ready) continue;
      resume(f);
    }
  } while (release(first, last, State::at_warp_barrier));
}

void run_block(const char* op) {
  begin_block();
  const int warps = (count + kWarp - 1) / kWarp;
  do {
    for (int i = 0; i < warps; ++i) {
      const int first = (backwards ? warps - 1 - i : i) * kWarp;
      run_warp(first, first + kWarp < count ? first + kWarp : count);
    }
  } while (release(0, count, State::at_block_barrier));
  for (int t = 0; t < count; ++t)
    if (!copies[t].empty()) give_up(op, "a copy that nobody waits for");
  if (!all_done()) give_up(op, "some threads wait at a barrier that others do not reach");
}

}  // namespace

void run(const char* op, dim3 blocks, dim3 threads, std::size_t shared_bytes,
         const std::function<void()>& kernel) {
  if (shared_bytes > kMostShared) give_up(op, "more shared memory than sm_89 has");
  const unsigned all = threads.x * threads.y * threads.z;
  if (all == 0 || all > 1024) give_up(op, "a block has 1 to 1024 threads");
  if (blocks.y > 65535 || blocks.z > 65535) give_up(op, "a grid is too high or too deep");
  count = static_cast<int>(all);
  body = &kernel;
  gridDim = blocks;
  blockDim = threads;
  const std::uint64_t grid = std::uint64_t{blocks.x} * blocks.y * blocks.z;
  for (std::uint64_t i = 0; i < grid; ++i) {
    const std::uint64_t at = backwards ? grid - 1 - i : i;
    blockIdx =
        dim3(static_cast<unsigned>(at % blocks.x), static_cast<unsigned>(at / blocks.x % blocks.y),
             static_cast<unsigned>(at / blocks.x / blocks.y));
    run_block(op);
  }
}

std::byte* shared_memory() {
  return shared;
}
void block_barrier() {
  yield(State::at_block_barrier);
}
void warp_barrier() {
  yield(State::at_warp_barrier);
}
std::byte* warp_slot(int lane) {
  return slots[running / kWarp * kWarp + lane];
}
int lane() {
  return running % kWarp;
}
void queue_copy(void* to, const void* from, bool there) {
  copies[running].push_back({to, from, there});
}
void run_copies() {
  for (const Copy& c : copies[running]) {
    if (c.there)
      std::memcpy(c.to, c.from, 16);
    else
      std::memset(c.to, 0, 16);
  }
  copies[running].clear();
}
void expect_aligned(const void* at) {
  if (reinterpret_cast<std::uintptr_t>(at) % 16 != 0) give_up("a copy", "an odd address");
}

}  // namespace plimsoll::emulator
