// Token and position embeddings.
//
// Thread mapping: forward, a thread for each eight columns of a token. Backward first finds the
// place of each token in the order by (id, token): a thread counts, for its token, those of one
// slice that come before it, integers added atomically; quadratic in T, 2^28 comparisons for 16384
// tokens, but free of a library and of its workspace. Then a block for each run of equal ids sums
// the run's rows, a thread for each eight columns.
// Memory: forward 1 (with positions 2) reads and 1 write of an element; backward 1 read of d_out, 1
// read and 1 write of each row that occurs.
// Numerics: fp32, rows in the order of their tokens, so the host's bits. An id outside of the table
// is noted (kernels/cuda/launch.h); its row counts as zero, its gradient is left out.
#include "kernels/cuda/elementwise.h"
#include "kernels/device/dropper.cuh"
#include "kernels/device/fault.cuh"

namespace plimsoll::kernels::cuda {

namespace {

using device::Dropper;
using device::kVector;

constexpr std::int64_t kSlice = 2048;  // tokens that one block compares with its 256

std::int32_t* fault_word() {
  const TensorView& faults = current_launch().faults;
  return faults ? int32_of(faults) : nullptr;
}

struct Lookup {
  const std::int32_t* ids;
  Span table, positions, out;  // positions: null where there are none
  std::int64_t tokens, width, length, vocabulary;
  Dropper drop;
  bool vectors;
  std::int32_t* faults;
};

__global__ void __launch_bounds__(kThreads) look_up(Lookup l) {
  const std::int64_t groups = ceil_divide(l.width, kVector);
  for (std::int64_t g = device::grid_thread(); g < l.tokens * groups; g += device::grid_threads()) {
    const std::int64_t t = g / groups, column = g % groups * kVector;
    const std::int64_t left = l.width - column;
    const int some = left < kVector ? static_cast<int>(left) : kVector;
    const std::int32_t id = l.ids[t];
    const bool known = id >= 0 && id < l.vocabulary;
    if (!known && column == 0) device::note_fault(l.faults, Fault::token_id, id);
    float v[kVector] = {}, p[kVector] = {};
    if (known) device::load_some(l.table, id * l.width + column, some, l.vectors, v);
    if (l.positions.data)
      device::load_some(l.positions, t % l.length * l.width + column, some, l.vectors, p);
    Dropper::State state;
    for (int e = 0; e < kVector; ++e)
      v[e] = l.drop(state, t * l.width + column + e, l.positions.data ? v[e] + p[e] : v[e]);
    device::store_some(l.out, t * l.width + column, some, l.vectors, v);
  }
}

// places[t] += tokens of the slice that come before t; counts[t] += those with its id.
__global__ void __launch_bounds__(kThreads)
    count_places(const std::int32_t* ids, std::int64_t tokens, std::int32_t* places,
                 std::int32_t* counts) {
  __shared__ std::int32_t shared[kThreads];
  const std::int64_t t = std::int64_t{blockIdx.x} * kThreads + threadIdx.x;
  const std::int32_t mine = t < tokens ? ids[t] : 0;
  const std::int64_t begin = blockIdx.y * kSlice;
  const std::int64_t end = begin + kSlice < tokens ? begin + kSlice : tokens;
  std::int32_t before = 0, equal = 0;
  for (std::int64_t at = begin; at < end; at += kThreads) {
    __syncthreads();  // the last ones are still being read
    if (at + threadIdx.x < end) shared[threadIdx.x] = ids[at + threadIdx.x];
    __syncthreads();
    const int n = end - at < kThreads ? static_cast<int>(end - at) : kThreads;
    for (int i = 0; i < n; ++i) {
      const bool same = shared[i] == mine;
      before += shared[i] < mine || (same && at + i < t);
      equal += same;
    }
  }
  if (t >= tokens) return;
  atomicAdd(places + t, before);
  atomicAdd(counts + t, equal);
}

__global__ void __launch_bounds__(kThreads)
    put_in_order(const std::int32_t* places, std::int64_t tokens, std::int32_t* order) {
  const std::int64_t t = device::grid_thread();
  if (t < tokens) order[places[t]] = static_cast<std::int32_t>(t);
}

struct RowsToAdd {
  Span d_out, gradient;
  std::int64_t width;
  bool vectors;
};

// gradient[row] += rows token(0), token(1), … of d_out; the thread's eight columns.
template <class Token>
__device__ __forceinline__ void add_rows(const RowsToAdd& r, std::int64_t row, std::int64_t count,
                                         Token token) {
  const std::int64_t column = (std::int64_t{blockIdx.y} * blockDim.x + threadIdx.x) * kVector;
  const std::int64_t left = r.width - column;
  if (left <= 0) return;
  const int some = left < kVector ? static_cast<int>(left) : kVector;
  float sum[kVector] = {}, v[kVector];
#pragma unroll 4
  for (std::int64_t k = 0; k < count; ++k) {
    device::load_some(r.d_out, token(k) * r.width + column, some, r.vectors, v);
    for (int e = 0; e < kVector; ++e) sum[e] += v[e];
  }
  device::load_some(r.gradient, row * r.width + column, some, r.vectors, v);
  for (int e = 0; e < kVector; ++e) v[e] += sum[e];
  device::store_some(r.gradient, row * r.width + column, some, r.vectors, v);
}

__global__ void __launch_bounds__(kThreads)
    add_runs(RowsToAdd r, const std::int32_t* ids, const std::int32_t* order,
             const std::int32_t* counts, std::int64_t vocabulary, std::int32_t* faults) {
  const std::int64_t at = blockIdx.x;
  const std::int32_t first = order[at], id = ids[first];
  if (at > 0 && ids[order[at - 1]] == id) return;  // inside a run
  if (id < 0 || id >= vocabulary) {
    if (threadIdx.x == 0 && blockIdx.y == 0) device::note_fault(faults, Fault::token_id, id);
    return;
  }
  add_rows(r, id, counts[first], [&](std::int64_t k) { return std::int64_t{order[at + k]}; });
}

__global__ void __launch_bounds__(kThreads)
    add_positions(RowsToAdd r, std::int64_t tokens, std::int64_t length) {
  const std::int64_t p = blockIdx.x;
  add_rows(r, p, ceil_divide(tokens - p, length), [&](std::int64_t k) { return k * length + p; });
}

Grid rows_grid(std::int64_t rows, std::int64_t width) {
  const int threads = width > 128 * kVector ? kThreads : 128;
  Grid grid = block_each(rows, threads);
  grid.blocks.y = static_cast<unsigned>(ceil_divide(width, threads * kVector));
  return grid;
}

void embedding_forward(ConstTensorView ids, ConstTensorView table, ConstTensorView positions,
                       std::int64_t length, const Dropout& dropout, TensorView out) {
  constexpr const char* op = "embedding_forward";
  const std::int64_t tokens = ids.elements(), width = table.shape[1];
  expect(out.elements() == tokens * width, op, "out is [T, h]");
  expect(!positions || (positions.shape[1] == width && positions.shape[0] >= length && length > 0),
         op, "positions are [>= length, h]");
  const Lookup l{.ids = int32_of(ids),
                 .table = span_of(table),
                 .positions = span_of(positions),
                 .out = span_of(out),
                 .tokens = tokens,
                 .width = width,
                 .length = length,
                 .vocabulary = table.shape[0],
                 .drop = dropper_of(dropout),
                 .vectors = aligned_rows({table, positions, out}, width),
                 .faults = fault_word()};
  start(op, look_up, strided_grid(tokens * ceil_divide(width, kVector)), l);
}

void add_to_table(const ConstTensorView& ids, const RowsToAdd& rows, const TensorView& d_table,
                  const TensorView& sorted) {
  constexpr const char* op = "embedding_backward";
  const std::int64_t tokens = ids.elements();
  expect(sorted.elements() >= 3 * tokens && d_table.shape[1] == rows.width, op,
         "d_table is [V, h], the scratch [4, T]");
  std::int32_t* places = int32_of(sorted);
  std::int32_t *counts = places + tokens, *order = counts + tokens;
  cuda_kernels().fill(0, {places, DType::int32, {2 * tokens}});
  Grid grid = block_each(ceil_divide(tokens, kThreads), kThreads);
  Grid slices = grid;
  slices.blocks.y = static_cast<unsigned>(ceil_divide(tokens, kSlice));
  expect(slices.blocks.y <= 65535, op, "there are at most 2^27 tokens");
  start(op, count_places, slices, int32_of(ids), tokens, places, counts);
  start(op, put_in_order, grid, places, tokens, order);
  start(op, add_runs, rows_grid(tokens, rows.width), rows, int32_of(ids), order, counts,
        d_table.shape[0], fault_word());
}

void embedding_backward(ConstTensorView ids, std::int64_t length, const Dropout& dropout,
                        TensorView d_out, TensorView d_table, TensorView d_positions,
                        TensorView sorted) {
  constexpr const char* op = "embedding_backward";
  const std::int64_t tokens = ids.elements();
  if (tokens == 0) return;
  expect(d_out.elements() % tokens == 0, op, "d_out is [T, h]");
  const std::int64_t width = d_out.elements() / tokens;
  if (dropout.rate > 0) cuda_kernels().dropout(d_out, dropout, false, d_out);
  const auto rows = [&](const TensorView& gradient) {
    return RowsToAdd{span_of(d_out), span_of(gradient), width,
                     aligned_rows({d_out, gradient}, width)};
  };
  if (d_table) add_to_table(ids, rows(d_table), d_table, sorted);
  if (!d_positions) return;
  const std::int64_t used = std::min(length, tokens);
  expect(length > 0 && d_positions.shape[0] >= used && d_positions.shape[1] == width, op,
         "d_positions is [>= length, h]");
  start(op, add_positions, rows_grid(used, width), rows(d_positions), tokens, length);
}

}  // namespace

void add_embedding(KernelTable& table) {
  table.embedding_forward = embedding_forward;
  table.embedding_backward = embedding_backward;
}

}  // namespace plimsoll::kernels::cuda
