// One block of threads as fibers: CUDA's indices, barriers and shuffles for g++.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <numbers>
#include <string>

struct dim3 {
  unsigned x = 1, y = 1, z = 1;
  dim3() = default;
  explicit dim3(unsigned a, unsigned b = 1, unsigned c = 1) : x(a), y(b), z(c) {}
};

// Of the fiber that runs.
extern dim3 threadIdx, blockIdx, blockDim, gridDim;

namespace plimsoll::emulator {

// What any architecture that we compile for gives a block (sm_89, CUDA programming guide, table of
// compute capabilities: 99 KiB).
inline constexpr std::size_t kMostShared = 99 << 10;

// Runs every block of a grid. A thread runs until a barrier, a shuffle or its end; which one is
// next, `order` says. Ends the process with a message where threads wait for one another for ever,
// the lanes of a warp meet at different instructions, a limit is passed, or accesses to memory are
// not ordered (tests/kernels/emulator/races.h), unless `noted` takes the message of such a race.
void run(const char* op, dim3 blocks, dim3 threads, std::size_t shared_bytes,
         const std::function<void()>& kernel);
// 0: in order. 1: the opposite. Others: drawn from this seed, for every round of warps and lanes.
extern std::uint64_t order;
extern std::string* noted;

// Of the launch, at a multiple of 16, filled with NaN before each block, as are the kernels' own
// shared arrays.
std::byte* shared_memory();
struct SharedRange {
  const std::byte *begin, *end;
  std::size_t bytes() const { return static_cast<std::size_t>(end - begin); }
};
SharedRange dynamic_shared_range();
SharedRange static_shared_range();

// What the lanes of a warp do together. Only `sync` orders memory.
enum class Together : std::uint8_t { sync, shuffle, load_matrices, mma };
void block_barrier();
void warp_barrier(Together what);
// Whether `at` lies in the slots below.
bool is_exchange(const std::byte* at);
// The 32 slots of 32 bytes of the running fiber's warp, and its lane.
std::byte* warp_slot(int lane);
int lane();

// An asynchronous copy of 16 bytes happens when its thread waits for it, and not before.
void queue_copy(void* to, const void* from, bool there);
void run_copies();
// Ends the process where an address is no multiple of 16.
void expect_aligned(const void* at);

template <class T>
T exchanged(T value, int from) {
  static_assert(sizeof(T) <= 32);
  std::memcpy(warp_slot(lane()), &value, sizeof(T));
  warp_barrier(Together::shuffle);
  std::memcpy(&value, warp_slot(from), sizeof(T));
  warp_barrier(Together::shuffle);
  return value;
}

}  // namespace plimsoll::emulator

inline void __syncthreads() {
  plimsoll::emulator::block_barrier();
}
inline void __syncwarp() {
  plimsoll::emulator::warp_barrier(plimsoll::emulator::Together::sync);
}
template <class T>
T __shfl_xor_sync(unsigned, T value, int mask) {
  return plimsoll::emulator::exchanged(value, plimsoll::emulator::lane() ^ mask);
}
template <class T>
T __shfl_sync(unsigned, T value, int from) {
  return plimsoll::emulator::exchanged(value, from);
}
inline void sincospi(double x, double* sine, double* cosine) {
  *sine = std::sin(x * std::numbers::pi);
  *cosine = std::cos(x * std::numbers::pi);
}
std::int32_t atomicAdd(std::int32_t* at, std::int32_t value);
std::int32_t atomicCAS(std::int32_t* at, std::int32_t expected, std::int32_t value);
