// Who touched which memory since which barrier: finds accesses that no barrier orders, which a
// schedule of fibers need not show.
//
// Kernels are compiled with -fsanitize=thread, which calls __tsan_read4 and the like at every
// access to memory; races.cpp has those functions, and no sanitizer is linked. Two accesses by
// different threads to the same byte, one of them a write, are a race, unless
//   __syncthreads is between them, and the threads are of one block;
//   __syncwarp is between them, and the threads are of one warp (a shuffle orders no memory);
//   or both are atomic.
// Reading shared memory that nobody in the block has written is a fault too, and so is a vector
// that is not aligned to its size.
#pragma once

#include <cstddef>
#include <cstdint>

namespace plimsoll::emulator {

// The thread that runs.
struct Running {
  std::uint32_t launch = 0, block = 0;
  std::uint32_t block_epoch = 0, warp_epoch = 0;  // barriers that it has passed in its block
  int thread = -1;  // -1: no kernel runs, nothing is looked at
  const std::byte* stack = nullptr;  // its own; of no interest
  std::size_t stack_bytes = 0;
};
extern thread_local Running now;  // ranks that are threads have one each

enum class Access : std::uint8_t { read, write, atomic };

// `bytes` from `at` on, by the thread that runs.
void access(const void* at, std::size_t bytes, Access kind);
// The same, where a GPU takes none but multiples of `bytes`: what the kernel does not say to be
// aligned, such as a float in a vector's place, is no such access.
void aligned_access(const void* at, std::size_t bytes, Access kind);
// The first fault of the launch, or nothing; forgets it.
const char* take_race();

}  // namespace plimsoll::emulator
