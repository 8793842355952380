// One block of threads as fibers: CUDA's indices, barriers and shuffles for g++.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>

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

// Runs every block of a grid. Blocks and threads go in order, or where `backwards` is set in the
// opposite one. Ends the process with a message where threads wait for one another for ever, or a
// limit is passed.
void run(const char* op, dim3 blocks, dim3 threads, std::size_t shared_bytes,
         const std::function<void()>& kernel);
extern bool backwards;

// kMostShared bytes at a multiple of 16, filled with NaN before each block.
std::byte* shared_memory();

void block_barrier();
void warp_barrier();
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
  warp_barrier();
  std::memcpy(&value, warp_slot(from), sizeof(T));
  warp_barrier();
  return value;
}

}  // namespace plimsoll::emulator

inline void __syncthreads() {
  plimsoll::emulator::block_barrier();
}
inline void __syncwarp() {
  plimsoll::emulator::warp_barrier();
}
template <class T>
T __shfl_xor_sync(unsigned, T value, int mask) {
  return plimsoll::emulator::exchanged(value, plimsoll::emulator::lane() ^ mask);
}
template <class T>
T __shfl_sync(unsigned, T value, int from) {
  return plimsoll::emulator::exchanged(value, from);
}
inline std::int32_t atomicAdd(std::int32_t* at, std::int32_t value) {
  const std::int32_t old = *at;
  *at += value;
  return old;
}
inline std::int32_t atomicCAS(std::int32_t* at, std::int32_t expected, std::int32_t value) {
  const std::int32_t old = *at;
  if (old == expected) *at = value;
  return old;
}
