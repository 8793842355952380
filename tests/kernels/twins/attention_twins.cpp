// Attention: with a stored matrix, and streaming.
#include "tests/kernels/twins/twins.h"

namespace plimsoll::kernels::test {

namespace {

AttentionShape shape_of(std::int64_t sequences, std::int64_t length, std::int64_t heads,
                        std::int64_t kv_heads, std::int64_t head_dim, std::int64_t window) {
  return {sequences,
          length,
          heads,
          kv_heads,
          head_dim,
          window,
          static_cast<float>(1 / std::sqrt(static_cast<double>(head_dim)))};
}

// Lengths and head sizes around tiles of 64 and 16; groups of 1, 2 and 3; windows.
const AttentionShape kShapes[] = {shape_of(1, 1, 1, 1, 1, 0),    shape_of(2, 5, 4, 2, 8, 0),
                                  shape_of(1, 70, 3, 1, 64, 0),  shape_of(1, 130, 2, 2, 36, 0),
                                  shape_of(2, 67, 2, 1, 128, 9), shape_of(1, 150, 1, 1, 16, 70),
                                  shape_of(1, 20, 2, 1, 200, 0), shape_of(1, 64, 1, 1, 64, 1)};

struct Operands {
  Tensor q, k, v, d_out;
};
Operands operands_of(const AttentionShape& s, DType dtype) {
  const std::int64_t tokens = s.sequences * s.length;
  const Extents queries{tokens, s.heads * s.head_dim}, keys{tokens, s.kv_heads * s.head_dim};
  return {drawn(queries, dtype, 1), drawn(keys, dtype, 2), drawn(keys, dtype, 3),
          drawn(queries, dtype, 4)};
}

template <class Visit>
void for_shapes(Visit visit) {
  for (const AttentionShape& s : kShapes)
    for (const DType dtype : kStorage) {
      CAPTURE(s.length);
      CAPTURE(s.head_dim);
      CAPTURE(s.window);
      CAPTURE(name_of(dtype));
      visit(s, dtype);
    }
}

}  // namespace

TEST_CASE("attention with a stored matrix is the host's, op by op") {
  for_shapes([](const AttentionShape& s, DType dtype) {
    const Operands x = operands_of(s, dtype);
    const Extents matrix{s.sequences, s.heads, s.length, s.length};
    const Dropout dropout{.rate = 0.2f, .key = {1, 2, 3}, .first_element = 5};
    const double sum = dtype == DType::fp32 ? 1e-5 : 1.1 * once(dtype);
    const auto operands = std::vector<Tensor>{x.q,
                                              x.k,
                                              x.v,
                                              x.d_out,
                                              Tensor(matrix, dtype),
                                              drawn(matrix, dtype, 5),
                                              Tensor(x.q.shape, dtype),
                                              Tensor(x.q.shape, dtype),
                                              Tensor(x.k.shape, dtype),
                                              Tensor(x.v.shape, dtype)};
    // Each op from the same operands, so that no difference is carried on.
    Twins t = twins(operands, [&](const KernelTable& k, const Views& v) {
      k.attention_scores(s, v[0], v[1], v[4]);
      k.softmax_forward(v[4]);
    });
    CHECK_NEAR(t.cuda[4], t.host[4], 4 * sum);  // of exponentials of scores of up to 2 in 16 bits
    const Tensor p = t.host[4];
    t = twins(operands, [&](const KernelTable& k, const Views& v) {
      k.attention_values(s, v[5], v[2], v[6]);
      k.attention_values_backward(s, v[5], v[3], v[9]);
    });
    CHECK_NEAR(t.cuda[6], t.host[6], sum);
    CHECK_NEAR(t.cuda[9], t.host[9], sum);
    t = twins(operands, [&](const KernelTable& k, const Views& v) {
      k.attention_scores_backward(s, v[5], v[0], v[1], v[7], v[8]);
    });
    CHECK_NEAR(t.cuda[7], t.host[7], sum);
    CHECK_NEAR(t.cuda[8], t.host[8], sum);
    t = twins(operands, [&](const KernelTable& k, const Views& v) {
      k.attention_probabilities_backward(s, v[3], v[2], v[4]);
    });
    CHECK_NEAR(t.cuda[4], t.host[4], sum);
    std::vector<Tensor> two = {p, operands[5]};
    t = twins(two, [&](const KernelTable& k, const Views& v) {
      k.softmax_backward(v[0], dropout, v[1]);
    });
    CHECK_NEAR(t.cuda[1], t.host[1], sum);
  });
}

}  // namespace plimsoll::kernels::test
