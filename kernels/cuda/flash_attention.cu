// Streaming attention: entries of the table, and the row sums that both kinds of backward need.
//
// Thread mapping of the row sums: half a warp for each (query, head), eight columns a lane.
// Memory: d_out and out are read once, 16 bytes at a time; 4 bytes written for each row of a head.
// Numerics: fp32; lanes are added as a tree.
//
// Backward needs no atomics and no second copy of d_q: one kernel goes over the keys and makes d_k
// and d_v, another over the queries and makes d_q, each with the probabilities made again. So of
// the scratch only the row sums are used, and as many (sequence, key head) groups go at once as it
// holds.
#include "kernels/cuda/attention_library.h"
#include "kernels/cuda/flash.h"
#include "kernels/device/reduce.cuh"
#include "kernels/host/attention.h"

namespace plimsoll::kernels::cuda {

namespace {

using device::kVector;

constexpr int kLanes = 16;  // of a row: eight columns each, 128 at a time
constexpr int kRowsOfBlock = kThreads / kLanes;

__global__ void __launch_bounds__(kThreads, 4) sum_rows(Flash f, bool vectors) {
  const AttentionShape& s = f.s;
  const std::int64_t at = std::int64_t{blockIdx.x} * kRowsOfBlock + threadIdx.x / kLanes;
  const bool there = at < f.groups * f.group() * s.length;
  float sum = 0;
  if (there) {
    const std::int64_t i = at % s.length, group = f.first_group + at / s.length / f.group();
    const std::int64_t head = group % s.kv_heads * f.group() + at / s.length % f.group();
    const std::int64_t sequence = group / s.kv_heads;
    const std::int64_t a = f.d_out.at(s, sequence, head) + i * f.d_out.stride;
    const std::int64_t b = f.out.at(s, sequence, head) + i * f.out.stride;
    for (std::int64_t c = threadIdx.x % kLanes * kVector; c < s.head_dim; c += kLanes * kVector) {
      const std::int64_t left = s.head_dim - c;
      const int some = left < kVector ? static_cast<int>(left) : kVector;
      float x[kVector], y[kVector];
      device::load_some(f.d_out.span, a + c, some, vectors, x);
      device::load_some(f.out.span, b + c, some, vectors, y);
#pragma unroll
      for (int e = 0; e < kVector; ++e) sum = fmaf(x[e], y[e], sum);
    }
  }
  for (int step = kLanes / 2; step > 0; step /= 2)
    sum += __shfl_xor_sync(device::kAllLanes, sum, step);
  if (there && threadIdx.x % kLanes == 0) f.row_sums[at] = sum;
}

// Where fast mode has a library; it may refuse.
AttentionLibrary* library() {
  const Launch& launch = current_launch();
  return launch.mode == Mode::fast ? launch.attention : nullptr;
}

void flash_forward(const AttentionShape& s, const Dropout& dropout, ConstColumns q, ConstColumns k,
                   ConstColumns v, TensorView out, TensorView logsumexp) {
  constexpr const char* op = "flash_forward";
  host::expect_shape(s, op);
  host::expect_heads(s, q, s.heads, op);
  host::expect_heads(s, k, s.kv_heads, op);
  host::expect_heads(s, v, s.kv_heads, op);
  host::expect_heads(s, out, s.heads, op);
  expect(!logsumexp || logsumexp.elements() == s.sequences * s.length * s.heads, op,
         "logsumexp is [sequences, heads, length]");
  if (s.sequences * s.length == 0) return;
  if (AttentionLibrary* const other = library())
    if (other->forward(s, dropout, {.q = q, .k = k, .v = v, .out = out, .logsumexp = logsumexp}))
      return;
  Flash f{.s = s, .drop = dropper_of(dropout)};
  f.q = heads_of(q), f.k = heads_of(k), f.v = heads_of(v);
  f.out = heads_of(ConstColumns(ConstTensorView(out)));
  f.logsumexp = logsumexp ? fp32_of(logsumexp) : nullptr;
  if (takes_mma(f, {q, k, v, ConstColumns(ConstTensorView(out))}))
    start_mma_forward(f);
  else
    start_plain_forward(f);
}

void flash_backward(const AttentionShape& s, const Dropout& dropout, ConstTensorView d_out,
                    ConstColumns q, ConstColumns k, ConstColumns v, ConstTensorView out,
                    ConstTensorView logsumexp, Columns d_q, Columns d_k, Columns d_v,
                    TensorView scratch) {
  constexpr const char* op = "flash_backward";
  host::expect_shape(s, op);
  for (const ConstColumns& x : {q, ConstColumns(d_q), ConstColumns(d_out), ConstColumns(out)})
    host::expect_heads(s, x, s.heads, op);
  for (const ConstColumns& x : {k, v, ConstColumns(d_k), ConstColumns(d_v)})
    host::expect_heads(s, x, s.kv_heads, op);
  expect(logsumexp.elements() == s.sequences * s.length * s.heads, op,
         "logsumexp is [sequences, heads, length]");
  const std::int64_t queries = s.heads / s.kv_heads * s.length;
  expect(scratch.elements() >= queries, op, "scratch holds at least one group");
  if (s.sequences * s.length == 0) return;
  if (AttentionLibrary* const other = library())
    if (other->backward(s, dropout, {q, k, v, out, logsumexp, d_out, d_q, d_k, d_v, scratch}))
      return;
  Flash f{.s = s, .drop = dropper_of(dropout)};
  f.q = heads_of(q), f.k = heads_of(k), f.v = heads_of(v);
  f.out = heads_of(ConstColumns(out)), f.d_out = heads_of(ConstColumns(d_out));
  f.d_q = heads_of(d_q), f.d_k = heads_of(d_k), f.d_v = heads_of(d_v);
  f.logsumexp = const_cast<float*>(fp32_of(logsumexp));
  f.row_sums = fp32_of(scratch);
  const bool mma = takes_mma(
      f, {q, k, v, ConstColumns(d_out), ConstColumns(d_q), ConstColumns(d_k), ConstColumns(d_v)});
  // A grid is at most 65535 high.
  const std::int64_t at_once = std::min(scratch.elements() / queries, 65535 / f.group());
  const std::int64_t all = s.sequences * s.kv_heads;
  for (f.first_group = 0; f.first_group < all; f.first_group += at_once) {
    f.groups = std::min(at_once, all - f.first_group);
    start_row_sums(f);
    if (mma)
      start_mma_backward(f);
    else
      start_plain_backward(f);
  }
}

}  // namespace

bool takes_vectors(const Flash& f, std::initializer_list<Heads> operands) {
  bool vectors = f.s.head_dim % kVector == 0;
  for (const Heads& x : operands)
    vectors = vectors && reinterpret_cast<std::uintptr_t>(x.span.data) % 16 == 0 &&
              x.stride % kVector == 0 && x.first % kVector == 0 && x.step % kVector == 0;
  return vectors;
}

void start_row_sums(const Flash& f) {
  start("flash_backward", sum_rows,
        block_each(ceil_divide(f.groups * f.group() * f.s.length, kRowsOfBlock), kThreads), f,
        takes_vectors(f, {f.d_out, f.out}));
}

void add_flash_attention(KernelTable& table) {
  table.flash_forward = flash_forward;
  table.flash_backward = flash_backward;
}

}  // namespace plimsoll::kernels::cuda
