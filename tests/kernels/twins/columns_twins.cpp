// Columns of a wider tensor, and heads that lie apart in it.
#include "tests/kernels/twins/twins.h"

namespace plimsoll::kernels::test {

TEST_CASE("attention of heads that lie apart is the host's") {
  for (const std::int64_t dim : {8, 36, 64})
    for (const DType dtype : kStorage) {
      CAPTURE(dim);
      CAPTURE(name_of(dtype));
      const std::int64_t heads = 2, length = 70, step = 3 * dim, stride = heads * step;
      const AttentionShape s{.sequences = 1,
                             .length = length,
                             .heads = heads,
                             .kv_heads = heads,
                             .head_dim = dim,
                             .scale = 0.25f};
      const auto part = [&](const TensorView& joined, std::int64_t which) {
        return Columns(joined, which * dim, heads * dim, step);
      };
      const std::vector<Tensor> operands = {
          drawn({length, stride}, dtype, 1),        drawn({length, heads * dim}, dtype, 2),
          Tensor({length, heads * dim}, dtype),     Tensor({1, heads, length}, DType::fp32),
          Tensor({length, stride}, dtype),          Tensor({1, length * (1 + dim)}, DType::fp32),
          Tensor({1, heads, length, length}, dtype)};
      const double limit = dtype == DType::fp32 ? 1e-5 : 2 * once(dtype);
      Twins t = twins(operands, [&](const KernelTable& k, const Views& v) {
        k.flash_forward(s, {}, part(v[0], 0), part(v[0], 1), part(v[0], 2), v[2], v[3]);
      });
      CHECK_NEAR(t.cuda[2], t.host[2], limit);
      t = twins(t.host, [&](const KernelTable& k, const Views& v) {
        k.flash_backward(s, {}, v[1], part(v[0], 0), part(v[0], 1), part(v[0], 2), v[2], v[3],
                         part(v[4], 0), part(v[4], 1), part(v[4], 2), v[5]);
      });
      CHECK_NEAR(t.cuda[4], t.host[4], limit);
      t = twins(operands, [&](const KernelTable& k, const Views& v) {
        k.attention_scores(s, part(v[0], 0), part(v[0], 1), v[6]);
        k.softmax_forward(v[6]);
      });
      CHECK_NEAR(t.cuda[6], t.host[6], 4 * limit);
    }
}

TEST_CASE("the rotation of a part of heads that lie apart has the host's bits") {
  for (const std::int64_t half : {1, 4, 20})
    for (const std::int64_t step : {2 * half + 3, 4 * half + 8}) {
      const std::int64_t length = 7, heads = 3, stride = heads * step + 16;
      const Twins t = twins(
          {drawn({2, length, half}, DType::fp32, 1), drawn({2 * length, stride}, DType::bf16, 2)},
          [&](const KernelTable& k, const Views& v) {
            k.rotary(v[0], false, Columns(v[1], 8, heads * 2 * half, step));
          });
      CHECK(t.cuda[1] == t.host[1]);
    }
}

TEST_CASE("gates beside what they gate are the host's, forward and backward") {
  for (const DType dtype : kStorage)
    for (const std::int64_t width : {1, 8, 33, 520}) {
      CAPTURE(width);
      const std::int64_t rows = 5;
      const Twins t = twins({drawn({rows, 2 * width}, dtype, 1), drawn({rows, width}, dtype, 2),
                             Tensor({rows, width}, dtype)},
                            [&](const KernelTable& k, const Views& v) {
                              const Columns gate(v[0], 0, width), up(v[0], width, width);
                              k.gated_forward(Activation::silu, gate, up, v[2]);
                              k.gated_backward(Activation::silu, gate, up, v[1]);
                            });
      const double limit = dtype == DType::fp32 ? 1e-6 : once(dtype);
      for (const std::size_t i : {0u, 1u, 2u}) CHECK_NEAR(t.cuda[i], t.host[i], limit);
    }
}

TEST_CASE(
    "a branch's gradient and the stream's, and a bias's over some columns, have the host's bits") {
  for (const DType dtype : kStorage)
    for (const std::int64_t n : kCounts) {
      const Dropout dropout{.rate = 0.25f, .key = {5, 6, 7}, .first_element = 9};
      const Twins t = twins(
          {drawn({n}, dtype, 1), drawn({n}, dtype, 2)},
          [&](const KernelTable& k, const Views& v) { k.residual_backward(dropout, v[0], v[1]); });
      CHECK(t.cuda[0] == t.host[0]);
      CHECK(t.cuda[1] == t.host[1]);
      const Twins bias =
          twins({drawn({3, n + 8}, dtype, 1), drawn({n}, dtype, 2), Tensor({2 * n}, DType::fp32)},
                [&](const KernelTable& k, const Views& v) {
                  k.bias_backward(Columns(v[0], 8, n), v[1], v[2]);
                });
      CHECK(bias.cuda[1] == bias.host[1]);
    }
}

}  // namespace plimsoll::kernels::test
