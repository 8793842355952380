#include <cmath>
#include <limits>

#include "tests/kernels/operands.h"

namespace plimsoll::kernels::test {

namespace {

const KernelTable& k = host_kernels();

AttentionShape shape_of(const Json& a) {
  const std::int64_t d = a["head_dim"];
  return {a["sequences"],
          a["length"],
          a["heads"],
          a["kv_heads"],
          d,
          a["window"],
          static_cast<float>(1 / std::sqrt(static_cast<double>(d)))};
}

struct Operands {
  Tensor q, k, v, d_out;
};

struct Results {
  Tensor out, logsumexp, p, d_q, d_k, d_v;
};
Results results(const AttentionShape& s, const Operands& x, DType probabilities) {
  const DType dtype = x.q.dtype;
  return {Tensor(x.q.shape, dtype, 7),
          Tensor({s.sequences, s.heads, s.length}, DType::fp32),
          Tensor({s.sequences, s.heads, s.length, s.length}, probabilities),
          Tensor(x.q.shape, dtype, 7),
          Tensor(x.k.shape, dtype, 7),
          Tensor(x.v.shape, dtype, 7)};
}

Tensor scratch_of(const AttentionShape& s, DType dtype) {
  const std::int64_t queries = s.heads / s.kv_heads * s.length;
  return {{1, queries * (dtype == DType::fp32 ? 1 : 1 + s.head_dim)}, DType::fp32, 7};
}

Results flash(const AttentionShape& s, const Operands& x, const Dropout& dropout = {}) {
  Results r = results(s, x, DType::fp32);
  Tensor scratch = scratch_of(s, x.q.dtype);
  k.flash_forward(s, dropout, x.q, x.k, x.v, r.out, r.logsumexp);
  k.flash_backward(s, dropout, x.d_out, x.q, x.k, x.v, r.out, r.logsumexp, r.d_q, r.d_k, r.d_v,
                   scratch);
  return r;
}

// In the order and with the tensors of models/decisions/layer.h.
Results eager(const AttentionShape& s, const Operands& x, DType probabilities,
              const Dropout& dropout = {}) {
  Results r = results(s, x, probabilities);
  k.attention_scores(s, x.q, x.k, r.p);
  k.softmax_forward(r.p);
  Tensor dropped = r.p, d_p = r.p;
  k.dropout(r.p, dropout, false, dropped);
  k.attention_values(s, dropped, x.v, r.out);
  k.attention_values_backward(s, dropped, x.d_out, r.d_v);
  k.attention_probabilities_backward(s, x.d_out, x.v, d_p);
  k.softmax_backward(r.p, dropout, d_p);
  k.attention_scores_backward(s, d_p, x.q, x.k, r.d_q, r.d_k);
  return r;
}

Operands inputs(const Json& c, DType dtype) {
  return {input(c, "q", dtype), input(c, "k", dtype), input(c, "v", dtype),
          input(c, "d_out", dtype)};
}
Operands drawn_operands(const AttentionShape& s, DType dtype) {
  const std::int64_t tokens = s.sequences * s.length;
  return {drawn({tokens, s.heads * s.head_dim}, dtype, 1),
          drawn({tokens, s.kv_heads * s.head_dim}, dtype, 2),
          drawn({tokens, s.kv_heads * s.head_dim}, dtype, 3),
          drawn({tokens, s.heads * s.head_dim}, dtype, 4)};
}

void check_gradients(const Results& r, const Json& out, double limit) {
  // The first query of all sees one key: of scores that nothing moves, the gradient is 0, and
  // where PyTorch's fp64 leaves noise there is nothing to compare with.
  if (r.out.shape[0] == 1) {
    for (const double d : r.d_q.values()) CHECK(std::abs(d) <= limit);
    for (const double d : r.d_k.values()) CHECK(std::abs(d) <= limit);
  } else {
    CHECK_NEAR(r.d_q, out["d_q"], limit);
    CHECK_NEAR(r.d_k, out["d_k"], limit);
  }
  CHECK_NEAR(r.d_v, out["d_v"], limit);
}

// The goldens have it [T, heads].
Tensor by_token(const AttentionShape& s, const Tensor& logsumexp) {
  Tensor turned({s.sequences * s.length, s.heads}, DType::fp32);
  const std::vector<double> values = logsumexp.values();
  for (std::int64_t b = 0; b < s.sequences; ++b)
    for (std::int64_t h = 0; h < s.heads; ++h)
      for (std::int64_t i = 0; i < s.length; ++i)
        turned.set((b * s.length + i) * s.heads + h,
                   values[static_cast<std::size_t>((b * s.heads + h) * s.length + i)]);
  return turned;
}

}  // namespace

// Backward reads `out` as it was stored: a 16-bit rounding is in the row sums.
TEST_CASE(
    "streaming attention and its gradients are PyTorch's: grouped heads, odd sizes, windows") {
  for_goldens("attention", [](const Json& c, DType dtype) {
    const AttentionShape s = shape_of(c["arguments"]);
    const Results r = flash(s, inputs(c, dtype));
    CHECK_NEAR(r.out, c["out"]["out"], once(dtype));
    CHECK_NEAR(by_token(s, r.logsumexp), c["out"]["logsumexp"], 1e-6);
    check_gradients(r, c["out"], 2 * once(dtype));
  });
}

// Scores and probabilities are stored in the matrix' dtype and rounded there.
TEST_CASE("materialised attention and its gradients are PyTorch's, matrix in fp32 or in 16 bits") {
  for_goldens("attention", [](const Json& c, DType dtype) {
    const AttentionShape s = shape_of(c["arguments"]);
    const Results exact = eager(s, inputs(c, dtype), DType::fp32);
    CHECK_NEAR(exact.p, c["out"]["p"], 1e-6);
    CHECK_NEAR(exact.out, c["out"]["out"], once(dtype));
    check_gradients(exact, c["out"], 2 * once(dtype));
    const Results rounded = eager(s, inputs(c, dtype), dtype);
    CHECK_NEAR(rounded.p, c["out"]["p"], 4 * once(dtype));
    CHECK_NEAR(rounded.out, c["out"]["out"], 4 * once(dtype));
    check_gradients(rounded, c["out"], 4 * once(dtype));
  });
}

TEST_CASE("streaming and materialised attention drop the same elements") {
  const AttentionShape s{.sequences = 2,
                         .length = 21,
                         .heads = 4,
                         .kv_heads = 2,
                         .head_dim = 6,
                         .window = 0,
                         .scale = 0.4f};
  const Operands x = drawn_operands(s, DType::fp32);
  const Dropout dropout{.rate = 0.3f, .key = {9, 2, 5}, .first_element = 12345};
  const Results a = flash(s, x, dropout), b = eager(s, x, DType::fp32, dropout);
  CHECK(deviation(a.out.values(), b.out.values()) < 1e-6);
  CHECK(deviation(a.d_q.values(), b.d_q.values()) < 2e-6);
  CHECK(deviation(a.d_k.values(), b.d_k.values()) < 2e-6);
  CHECK(deviation(a.d_v.values(), b.d_v.values()) < 2e-6);
  CHECK(deviation(a.out.values(), flash(s, x).out.values()) > 0.1);  // something was dropped
}

TEST_CASE("gradients of attention are the slopes of its forward, dropout and window included") {
  const AttentionShape s{.sequences = 1,
                         .length = 6,
                         .heads = 2,
                         .kv_heads = 1,
                         .head_dim = 3,
                         .window = 4,
                         .scale = 0.5f};
  const Operands x = drawn_operands(s, DType::fp32);
  const Dropout dropout{.rate = 0.25f, .key = {9, 2, 5}};
  const Results r = flash(s, x, dropout);
  const auto forward = [&](const Tensor& q, const Tensor& key, const Tensor& v) {
    Tensor out(x.q.shape, DType::fp32);
    k.flash_forward(s, dropout, q, key, v, out, {});
    return out;
  };
  CHECK(deviation(r.d_q.values(), slopes(x.q, x.d_out, [&](const Tensor& at) {
                    return forward(at, x.k, x.v);
                  })) < 2e-3);
  CHECK(deviation(r.d_k.values(), slopes(x.k, x.d_out, [&](const Tensor& at) {
                    return forward(x.q, at, x.v);
                  })) < 2e-3);
  CHECK(deviation(r.d_v.values(), slopes(x.v, x.d_out, [&](const Tensor& at) {
                    return forward(x.q, x.k, at);
                  })) < 2e-3);
}

TEST_CASE("q, k and v side by side in one tensor give the bits of three tensors") {
  const AttentionShape s{.sequences = 2,
                         .length = 5,
                         .heads = 3,
                         .kv_heads = 3,
                         .head_dim = 4,
                         .window = 0,
                         .scale = 0.5f};
  const std::int64_t w = 12, rows = 10;
  for (const DType dtype : kStorage) {
    const Operands x = drawn_operands(s, dtype);
    const Results apart = flash(s, x);
    const Results stored = eager(s, x, dtype);
    Tensor qkv({rows, 3 * w}, dtype), d_qkv({rows, 3 * w}, dtype, 7), d_again = d_qkv;
    for (std::int64_t t = 0; t < rows; ++t)
      for (std::int64_t i = 0; i < w; ++i) {
        qkv.set(t * 3 * w + i, x.q.at(t * w + i));
        qkv.set(t * 3 * w + w + i, x.k.at(t * w + i));
        qkv.set(t * 3 * w + 2 * w + i, x.v.at(t * w + i));
      }
    const Columns q(qkv, 0, w), key(qkv, w, w), v(qkv, 2 * w, w);
    Tensor out(x.q.shape, dtype), sums({rows, 3}, DType::fp32), scratch = scratch_of(s, dtype);
    k.flash_forward(s, {}, q, key, v, out, sums);
    CHECK(out == apart.out);
    k.flash_backward(s, {}, x.d_out, q, key, v, out, sums, Columns(d_qkv, 0, w),
                     Columns(d_qkv, w, w), Columns(d_qkv, 2 * w, w), scratch);
    Tensor d_p = stored.p;
    k.attention_values_backward(s, stored.p, x.d_out, Columns(d_again, 2 * w, w));
    k.attention_probabilities_backward(s, x.d_out, v, d_p);
    k.softmax_backward(stored.p, {}, d_p);
    k.attention_scores_backward(s, d_p, q, key, Columns(d_again, 0, w), Columns(d_again, w, w));
    for (std::int64_t t = 0; t < rows; ++t)
      for (std::int64_t i = 0; i < w; ++i)
        for (const auto& [fused, one] : {std::pair{&d_qkv, &apart}, {&d_again, &stored}}) {
          REQUIRE(fused->at(t * 3 * w + i) == one->d_q.at(t * w + i));
          REQUIRE(fused->at(t * 3 * w + w + i) == one->d_k.at(t * w + i));
          REQUIRE(fused->at(t * 3 * w + 2 * w + i) == one->d_v.at(t * w + i));
        }
  }
}

TEST_CASE("a sequence does not see its neighbour, nor a query what comes after it") {
  const AttentionShape s{.sequences = 2,
                         .length = 20,
                         .heads = 2,
                         .kv_heads = 1,
                         .head_dim = 3,
                         .window = 0,
                         .scale = 0.5f};
  Operands x = drawn_operands(s, DType::fp32);
  const Results before = flash(s, x);
  x.k.set(25 * 3, 100);  // token 5 of the second sequence
  x.v.set(25 * 3, 100);
  for (const Results& after : {flash(s, x), eager(s, x, DType::fp32)})
    for (std::int64_t t = 0; t < 40; ++t) {
      double moved = 0;
      for (std::int64_t i = 0; i < 6; ++i)
        moved += std::abs(after.out.at(t * 6 + i) - before.out.at(t * 6 + i));
      CAPTURE(t);
      CHECK((moved > 1e-3) == (t >= 25));
    }
}

// Scores of ±10000: exp overflows unless the maximum is taken out, in whichever order it comes.
TEST_CASE("large scores do not overflow; one key alone is its value") {
  const AttentionShape s{.sequences = 1,
                         .length = 3,
                         .heads = 1,
                         .kv_heads = 1,
                         .head_dim = 1,
                         .window = 0,
                         .scale = 1};
  Operands x{Tensor({3, 1}, DType::fp32, 100), Tensor({3, 1}, DType::fp32, {-100, 100, -100}),
             Tensor({3, 1}, DType::fp32, {1, 2, 3}), Tensor({3, 1}, DType::fp32, 1)};
  for (const Results& r : {flash(s, x), eager(s, x, DType::fp32)}) {
    CHECK(r.out.values() == std::vector<double>{1, 2, 2});
    for (const Tensor* d : {&r.d_q, &r.d_k})
      for (const double v : d->values()) CHECK(std::isfinite(v));
  }
}

TEST_CASE("NaN of a key reaches the queries that see it and no others") {
  const AttentionShape s{.sequences = 1,
                         .length = 4,
                         .heads = 1,
                         .kv_heads = 1,
                         .head_dim = 2,
                         .window = 2,
                         .scale = 1};
  Operands x = drawn_operands(s, DType::fp32);
  x.k.set(2, std::numeric_limits<double>::quiet_NaN());  // key 1: seen by queries 1 and 2
  for (const Results& r : {flash(s, x), eager(s, x, DType::fp32)})
    for (std::int64_t i = 0; i < 4; ++i) CHECK(std::isnan(r.out.at(2 * i)) == (i == 1 || i == 2));
}

TEST_CASE(
    "attention refuses heads that are not a multiple of the key heads, and too little scratch") {
  AttentionShape s{.sequences = 1,
                   .length = 2,
                   .heads = 3,
                   .kv_heads = 2,
                   .head_dim = 2,
                   .window = 0,
                   .scale = 1};
  Tensor q({2, 6}, DType::bf16), kv({2, 4}, DType::bf16), sums({2, 3}, DType::fp32);
  CHECK_THROWS_AS(k.flash_forward(s, {}, q, kv, kv, q, sums), Error);
  s.kv_heads = 1;
  Tensor one({2, 2}, DType::bf16), scratch({1, 17}, DType::fp32);  // 3 · 2 · (1 + 2) = 18
  CHECK_THROWS_AS(k.flash_backward(s, {}, q, q, one, one, q, sums, q, one, one, scratch), Error);
}

TEST_CASE("no tokens attend to nothing") {
  const AttentionShape s{.sequences = 0,
                         .length = 4,
                         .heads = 2,
                         .kv_heads = 1,
                         .head_dim = 2,
                         .window = 0,
                         .scale = 1};
  const Results r = flash(s, drawn_operands(s, DType::bf16));
  CHECK(r.out.elements() == 0);
  CHECK(eager(s, drawn_operands(s, DType::bf16), DType::bf16).p.elements() == 0);
}

}  // namespace plimsoll::kernels::test
