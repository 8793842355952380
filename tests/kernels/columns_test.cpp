// Columns of a wider tensor, and heads that lie apart in it, against tensors of their own.
#include <doctest/doctest.h>

#include "tests/kernels/operands.h"

namespace plimsoll::kernels::test {

namespace {

const KernelTable& k = host_kernels();

// Heads of 4: q, k and v of each side by side, in rows of 2 · 3 · 4 and 5 more.
constexpr std::int64_t kHeads = 2, kDim = 4, kStep = 3 * kDim, kStride = kHeads * kStep + 5;
constexpr std::int64_t kTokens = 6;
constexpr AttentionShape kShape{.sequences = 2,
                                .length = 3,
                                .heads = kHeads,
                                .kv_heads = kHeads,
                                .head_dim = kDim,
                                .scale = 0.5f};

Columns part(Tensor& joined, std::int64_t which) {
  return {joined, which * kDim, kHeads * kDim, kStep};
}
Tensor taken(const Tensor& joined, std::int64_t which) {
  Tensor own({kTokens, kHeads * kDim}, joined.dtype);
  for (std::int64_t t = 0; t < kTokens; ++t)
    for (std::int64_t i = 0; i < kHeads * kDim; ++i)
      own.set(t * kHeads * kDim + i,
              joined.at(t * kStride + which * kDim + i / kDim * kStep + i % kDim));
  return own;
}

}  // namespace

TEST_CASE("attention of heads that lie apart has the bits of heads side by side") {
  for (const DType dtype : {DType::fp32, DType::bf16}) {
    Tensor joined = drawn({kTokens, kStride}, dtype, 1), d_joined({kTokens, kStride}, dtype, 9);
    Tensor q = taken(joined, 0), key = taken(joined, 1), v = taken(joined, 2);
    const Tensor d_out = drawn(q.shape, dtype, 2);
    Tensor out(q.shape, dtype), sums({2, kHeads, 3}, DType::fp32), own = out, own_sums = sums;
    k.flash_forward(kShape, {}, part(joined, 0), part(joined, 1), part(joined, 2), out, sums);
    k.flash_forward(kShape, {}, q, key, v, own, own_sums);
    CHECK(out.bytes == own.bytes);
    CHECK(sums.bytes == own_sums.bytes);
    Tensor scratch({64}, DType::fp32), d_q(q.shape, dtype), d_k = d_q, d_v = d_q;
    k.flash_backward(kShape, {}, d_out, part(joined, 0), part(joined, 1), part(joined, 2), out,
                     sums, part(d_joined, 0), part(d_joined, 1), part(d_joined, 2), scratch);
    k.flash_backward(kShape, {}, d_out, q, key, v, out, sums, d_q, d_k, d_v, scratch);
    CHECK(taken(d_joined, 0).bytes == d_q.bytes);
    CHECK(taken(d_joined, 1).bytes == d_k.bytes);
    CHECK(taken(d_joined, 2).bytes == d_v.bytes);
    CHECK(d_joined.at(kStride - 1) == 9);  // what belongs to no head is left
    Tensor p({2, kHeads, 3, 3}, dtype), own_p = p;
    k.attention_scores(kShape, part(joined, 0), part(joined, 1), p);
    k.attention_scores(kShape, q, key, own_p);
    CHECK(p.bytes == own_p.bytes);
  }
}

TEST_CASE("rotation turns the beginning of each head, and nothing else") {
  Tensor table({2, 3, 1}, DType::fp32), joined = drawn({kTokens, kStride}, DType::fp32, 1);
  const Tensor before = joined;
  k.rotary_table({}, table);
  k.rotary(table, false, Columns(joined, kDim, kHeads * 2, kStep));  // two elements of each key
  for (std::int64_t t = 0; t < kTokens; ++t)
    for (std::int64_t i = 0; i < kStride; ++i) {
      const bool turned = i < kHeads * kStep && i % kStep >= kDim && i % kStep < kDim + 2;
      const bool changed = joined.at(t * kStride + i) != before.at(t * kStride + i);
      CHECK(changed == (turned && t % 3 > 0));
    }
  k.rotary(table, true, Columns(joined, kDim, kHeads * 2, kStep));
  CHECK(deviation(joined.values(), before.values()) < 1e-6);
}

TEST_CASE("a gate beside what it gates has the bits of two tensors") {
  for (const DType dtype : {DType::fp32, DType::fp16})
    for (const std::int64_t width : {1, 8, 700}) {
      const std::int64_t rows = 3;
      Tensor joined = drawn({rows, 2 * width}, dtype, 1);
      Tensor gate({rows, width}, dtype), up = gate, p = gate, own = gate;
      for (std::int64_t i = 0; i < rows * width; ++i) {
        gate.set(i, joined.at(i / width * 2 * width + i % width));
        up.set(i, joined.at((i / width * 2 + 1) * width + i % width));
      }
      const Columns first(joined, 0, width), second(joined, width, width);
      k.gated_forward(Activation::silu, first, second, p);
      k.gated_forward(Activation::silu, gate, up, own);
      CHECK(p.bytes == own.bytes);
      Tensor d_p = drawn({rows, width}, dtype, 2), d_own = d_p;
      k.gated_backward(Activation::silu, first, second, d_p);
      k.gated_backward(Activation::silu, gate, up, d_own);
      CHECK(d_p.bytes == d_own.bytes);
      for (std::int64_t i = 0; i < rows * width; ++i) {
        CHECK(joined.at(i / width * 2 * width + i % width) == gate.at(i));
        CHECK(joined.at((i / width * 2 + 1) * width + i % width) == up.at(i));
      }
    }
}

TEST_CASE("a bias's gradient is summed over columns of wider rows") {
  const Tensor d_y({2, 4}, DType::fp32, {1, 2, 3, 100, 10, 20, 30, 100});
  Tensor d_bias({3}, DType::fp32, 0.5), partial({2 * 3}, DType::fp32);
  k.bias_backward(ConstColumns(ConstTensorView(d_y), 0, 3), d_bias, partial);
  CHECK(d_bias.values() == std::vector<double>{11.5, 22.5, 33.5});
}

TEST_CASE("the gradients of a stream and of a branch change places") {
  Tensor d({3}, DType::fp32, {1, 2, 3}), e({3}, DType::fp32, {10, 20, 30});
  k.residual_backward({}, d, e);
  CHECK(d.values() == std::vector<double>{11, 22, 33});
  CHECK(e.values() == std::vector<double>{1, 2, 3});
  k.residual_backward({.rate = 1}, d, e);
  CHECK(d.values() == std::vector<double>{12, 24, 36});
  CHECK(e.values() == std::vector<double>{0, 0, 0});
}

}  // namespace plimsoll::kernels::test
