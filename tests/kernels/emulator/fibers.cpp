#include "tests/kernels/emulator/fibers.h"

#include <setjmp.h>
#include <ucontext.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <numeric>
#include <vector>

#include "tests/kernels/emulator/races.h"

dim3 threadIdx, blockIdx, blockDim, gridDim;

// Where the linker puts the kernels' __shared__ arrays (platform.cuh names the section), and where
// it is empty one byte of its own.
extern "C" std::byte __start_gpu_shared[], __stop_gpu_shared[];
[[gnu::section("gpu_shared"), gnu::used]] static std::byte some_shared[16];

namespace plimsoll::emulator {

std::uint64_t order = 0;
std::string* noted = nullptr;

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
  Together waits_for{};  // at a warp's barrier
  dim3 index;
};

std::vector<std::unique_ptr<Fiber>> fibers;  // kept from block to block
int count = 0;  // of the block that runs
int running = 0;
ucontext_t first_scheduler;
jmp_buf scheduler;
const std::function<void()>* body = nullptr;
alignas(16) std::byte shared[kMostShared];
std::size_t shared_bytes = 0;  // of the launch
std::uint32_t block_epoch = 0, warp_epochs[1024 / kWarp];
std::uint64_t drawn = 0;  // the state of `random`
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

// Steele, Lea, Flood: "Fast splittable pseudorandom number generators", 2014 (SplitMix64).
std::uint64_t random() {
  std::uint64_t z = drawn += 0x9e3779b97f4a7c15u;
  z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
  z = (z ^ z >> 27) * 0x94d049bb133111ebu;
  return z ^ z >> 31;
}

// The numbers from 0 to n - 1 as `order` wants them.
void arrange(int n, int* to) {
  std::iota(to, to + n, 0);
  if (order == 1) std::reverse(to, to + n);
  if (order < 2) return;
  for (int i = n; i > 1; --i) std::swap(to[i - 1], to[random() % static_cast<std::uint64_t>(i)]);
}

void resume(Fiber& f) {
  threadIdx = f.index;
  now.thread = running;
  now.block_epoch = block_epoch;
  now.warp_epoch = warp_epochs[running / kWarp];
  now.stack = f.stack.get();
  now.stack_bytes = kStack;
  if (_setjmp(scheduler) != 0) {
    now.thread = -1;
    return;
  }
  if (f.begun) _longjmp(f.where, 1);
  f.begun = true;
  swapcontext(&first_scheduler, &f.context);
}

void begin_block() {
  std::memset(shared, 0xff, shared_bytes);
  const SharedRange own = static_shared_range();
  std::memset(const_cast<std::byte*>(own.begin), 0xff, own.bytes());
  block_epoch = 0;
  std::fill(std::begin(warp_epochs), std::end(warp_epochs), 0);
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

// Where all lanes of a warp meet, they go on.
bool release_warp(const char* op, int first, int last) {
  if (!release(first, last, State::at_warp_barrier)) return false;
  const Together what = fibers[static_cast<std::size_t>(first)]->waits_for;
  for (int t = first; t < last; ++t)
    if (fibers[static_cast<std::size_t>(t)]->waits_for != what)
      give_up(op, "the lanes of a warp meet at different instructions");
  if (what == Together::sync) ++warp_epochs[first / kWarp];
  return true;
}

// Runs the lanes of a warp until all have ended or wait for other warps.
void run_warp(const char* op, int first, int last) {
  int lanes[kWarp];
  do {
    arrange(last - first, lanes);
    for (int i = 0; i < last - first; ++i) {
      running = first + lanes[i];
      Fiber& f = *fibers[static_cast<std::size_t>(running)];
      if (f.state == State::ready) resume(f);
    }
  } while (release_warp(op, first, last));
}

void run_block(const char* op) {
  begin_block();
  const int warps = (count + kWarp - 1) / kWarp;
  int turns[1024 / kWarp];
  do {
    arrange(warps, turns);
    for (int i = 0; i < warps; ++i)
      run_warp(op, turns[i] * kWarp, std::min(count, (turns[i] + 1) * kWarp));
    ++block_epoch;
  } while (release(0, count, State::at_block_barrier));
  for (int t = 0; t < count; ++t)
    if (!copies[t].empty()) give_up(op, "a copy that nobody waits for");
  if (!all_done()) give_up(op, "some threads wait at a barrier that others do not reach");
}

// Block `i` of `grid` in an order of its own for each seed: a step that shares no factor with it.
std::uint64_t block_at(std::uint64_t i, std::uint64_t grid) {
  if (order == 0) return i;
  if (order == 1) return grid - 1 - i;
  std::uint64_t step = grid / 2 + order % grid;
  while (std::gcd(step, grid) != 1) ++step;
  return (i * (step % grid) + order) % grid;
}

}  // namespace

void run(const char* op, dim3 blocks, dim3 threads, std::size_t bytes,
         const std::function<void()>& kernel) {
  // Ranks that are threads have one GPU.
  static std::mutex gpu;
  const std::lock_guard alone(gpu);
  if (bytes > kMostShared) give_up(op, "more shared memory than sm_89 has");
  const unsigned all = threads.x * threads.y * threads.z;
  if (all == 0 || all > 1024) give_up(op, "a block has 1 to 1024 threads");
  if (blocks.y > 65535 || blocks.z > 65535) give_up(op, "a grid is too high or too deep");
  count = static_cast<int>(all);
  body = &kernel;
  shared_bytes = bytes;
  drawn = order;
  static std::uint32_t launches = 0;  // of all threads
  now.launch = ++launches;
  gridDim = blocks;
  blockDim = threads;
  const std::uint64_t grid = std::uint64_t{blocks.x} * blocks.y * blocks.z;
  for (std::uint64_t i = 0; i < grid; ++i) {
    const std::uint64_t at = block_at(i, grid);
    now.block = static_cast<std::uint32_t>(at);
    blockIdx =
        dim3(static_cast<unsigned>(at % blocks.x), static_cast<unsigned>(at / blocks.x % blocks.y),
             static_cast<unsigned>(at / blocks.x / blocks.y));
    run_block(op);
  }
  const char* race = take_race();
  if (race != nullptr && noted == nullptr) give_up(op, race);
  if (race != nullptr) *noted = race;
}

std::byte* shared_memory() {
  return shared;
}
void block_barrier() {
  yield(State::at_block_barrier);
}
void warp_barrier(Together what) {
  fibers[static_cast<std::size_t>(running)]->waits_for = what;
  yield(State::at_warp_barrier);
}
SharedRange static_shared_range() {
  return {__start_gpu_shared, __stop_gpu_shared};
}
SharedRange dynamic_shared_range() {
  return {shared, shared + sizeof(shared)};
}
bool is_exchange(const std::byte* at) {
  return at >= slots[0] && at < slots[0] + sizeof(slots);
}
std::byte* warp_slot(int lane) {
  return slots[running / kWarp * kWarp + lane];
}
int lane() {
  return running % kWarp;
}
void queue_copy(void* to, const void* from, bool there) {
  // It may be written from here on, until the thread has waited.
  access(to, 16, Access::write);
  if (there) access(from, 16, Access::read);
  copies[running].push_back({to, from, there});
}
void run_copies() {
  for (const Copy& c : copies[running]) {
    access(c.to, 16, Access::write);
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

std::int32_t atomicAdd(std::int32_t* at, std::int32_t value) {
  plimsoll::emulator::access(at, sizeof(*at), plimsoll::emulator::Access::atomic);
  const std::int32_t old = *at;
  *at += value;
  return old;
}
std::int32_t atomicCAS(std::int32_t* at, std::int32_t expected, std::int32_t value) {
  plimsoll::emulator::access(at, sizeof(*at), plimsoll::emulator::Access::atomic);
  const std::int32_t old = *at;
  if (old == expected) *at = value;
  return old;
}
