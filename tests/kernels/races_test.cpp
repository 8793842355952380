// The emulator's own test: kernels with seeded faults, each of which some schedule of threads would
// survive, and the same kernels without.
#include <doctest/doctest.h>

#include <string>
#include <vector>

#include "kernels/device/platform.cuh"

namespace plimsoll::kernels::test {

namespace {

using device::Grid;

// What the emulator says of a launch, in order, backwards and in a drawn order: the same each time.
template <class... Parameters, class... Arguments>
std::string race_of(void (*kernel)(Parameters...), const Grid& grid, Arguments... arguments) {
  const cuda::Launching launching{cuda::Launch()};
  std::string first;
  for (const std::uint64_t order : {0, 1, 2, 3}) {
    std::string noted;
    emulator::order = order;
    emulator::noted = &noted;
    device::start("test", kernel, grid, arguments...);
    emulator::noted = nullptr;
    noted = noted.substr(0, noted.find(" at "));
    if (order == 0)
      first = noted;
    else
      CHECK((first.empty() == noted.empty()));
  }
  emulator::order = 0;
  return first;
}

int thread() {
  return static_cast<int>(threadIdx.x);
}

__global__ void turn(float* x, int barriers) {
  __shared__ float shared[64];
  for (int pass = 0; pass < 2; ++pass) {
    shared[thread()] = x[thread()];
    if (barriers > 0) __syncthreads();
    x[thread()] = shared[63 - thread()];
    if (barriers > 1) __syncthreads();
  }
}

__global__ void turn_warp(float* x, bool sync) {
  __shared__ float shared[32];
  shared[thread()] = x[thread()];
  if (sync)
    __syncwarp();
  else
    x[thread()] = __shfl_xor_sync(~0u, x[thread()], 1);  // waits for the lanes, orders no memory
  x[thread()] = shared[31 - thread()];
}

__global__ void count(std::int32_t* sum, bool atomic) {
  if (thread() != 0) return;
  if (atomic)
    atomicAdd(sum, 1);
  else
    *sum += 1;
}

__global__ void read_next_block(const float* x, float* y, bool itself) {
  const auto block = blockIdx.x;
  y[block] = x[itself ? block : (block + 1) % gridDim.x];
}

__global__ void read_unwritten(float* x) {
  __shared__ float shared[64];
  if (thread() < 63) shared[thread()] = 1;
  __syncthreads();
  x[thread()] = shared[thread()];
}

__global__ void fetch(const float* x, float* y) {
  *reinterpret_cast<double*>(y) = *reinterpret_cast<const double*>(x);
}

// Two tiles: one is computed on while the other arrives.
__global__ void pipeline(const float* x, float* y, int tiles, bool barrier, bool two) {
  float* shared = device::dynamic_shared<float>();
  const auto load = [&](int tile) {
    device::copy_async(shared + (two ? tile % 2 : 0) * 256 + 4 * thread(),
                       x + tile * 256 + 4 * thread(), true);
  };
  load(0);
  float sum = 0;
  for (int tile = 0; tile < tiles; ++tile) {
    device::wait_for_copies();
    if (barrier) __syncthreads();
    if (tile + 1 < tiles) load(tile + 1);
    for (int i = 0; i < 256; ++i) sum += shared[(two ? tile % 2 : 0) * 256 + i];
  }
  y[thread()] = sum;
}

Grid grid(unsigned blocks, unsigned threads, std::size_t shared = 0) {
  return {dim3(blocks), dim3(threads), shared};
}

}  // namespace

TEST_CASE("a barrier that is missing between warps is a race in every order of threads") {
  std::vector<float> x(64, 1);
  CHECK(race_of(turn, grid(1, 64), x.data(), 0) != "");
  CHECK(race_of(turn, grid(1, 64), x.data(), 1) != "");  // the second pass writes what is read
  CHECK(race_of(turn, grid(1, 64), x.data(), 2) == "");
}

TEST_CASE("a shuffle orders no memory of its warp, __syncwarp does") {
  std::vector<float> x(32, 1);
  CHECK(race_of(turn_warp, grid(1, 32), x.data(), false) != "");
  CHECK(race_of(turn_warp, grid(1, 32), x.data(), true) == "");
}

TEST_CASE("blocks are ordered by nothing but the launch") {
  std::int32_t sum = 0;
  std::vector<float> x(4, 1), y(4);
  CHECK(race_of(count, grid(4, 32), &sum, false) != "");
  CHECK(race_of(count, grid(4, 32), &sum, true) == "");
  CHECK(race_of(count, grid(1, 32), &sum, false) == "");
  CHECK(race_of(read_next_block, grid(4, 1), x.data(), x.data(), false) != "");
  CHECK(race_of(read_next_block, grid(4, 1), x.data(), x.data(), true) == "");
  CHECK(race_of(read_next_block, grid(4, 1), x.data(), y.data(), false) == "");
}

TEST_CASE("shared memory that nobody has written is not read") {
  std::vector<float> x(64, 1);
  CHECK(race_of(read_unwritten, grid(2, 64), x.data()) ==
        "read before anything is written: static shared memory");
}

// x86 takes eight bytes at any address; for sixteen it traps before the emulator can say why.
TEST_CASE("a vector begins at a multiple of its size") {
  alignas(16) float x[8] = {}, y[8];
  CHECK(race_of(fetch, grid(1, 1), static_cast<const float*>(x), y + 0) == "");
  CHECK(race_of(fetch, grid(1, 1), static_cast<const float*>(x + 1), y + 0) != "");
  CHECK(race_of(fetch, grid(1, 1), static_cast<const float*>(x), y + 1) != "");
}

TEST_CASE("a tile that arrives is not the one that is read, and is waited for by all") {
  std::vector<float> x(1024, 1), y(64);
  const Grid one = grid(1, 64, 2048);
  CHECK(race_of(pipeline, one, x.data(), y.data(), 4, true, true) == "");
  CHECK(y[63] == 1024);
  CHECK(race_of(pipeline, one, x.data(), y.data(), 4, false, true) != "");
  CHECK(race_of(pipeline, one, x.data(), y.data(), 4, true, false) != "");
}

}  // namespace plimsoll::kernels::test
