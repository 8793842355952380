// Attention: with a stored matrix, and streaming.
#include "tests/kernels/twins/twins.h"

namespace plimsoll::kernels::test {

namespace {

AttentionShape shape_of(std::int64_t sequences, std::int64_t length, std::int64_t heads,
                        std::int64_t kv_heads, std::int64_t head_dim, std::int64_t window,
                        float cap = 0) {
  return {sequences,
          length,
          heads,
          kv_heads,
          head_dim,
          window,
          static_cast<float>(1 / std::sqrt(static_cast<double>(head_dim))),
          cap};
}

// Lengths and head sizes around tiles of 64 and 16; groups of 1, 2 and 3; windows; caps that bite.
const AttentionShape kShapes[] = {
    shape_of(1, 1, 1, 1, 1, 0),         shape_of(2, 5, 4, 2, 8, 0),
    shape_of(1, 70, 3, 1, 64, 0),       shape_of(1, 130, 2, 2, 36, 0),
    shape_of(2, 67, 2, 1, 128, 9),      shape_of(1, 150, 1, 1, 16, 70),
    shape_of(1, 20, 2, 1, 200, 0),      shape_of(1, 64, 1, 1, 64, 1),
    shape_of(1, 70, 4, 2, 64, 0, 0.5f), shape_of(2, 67, 2, 1, 128, 9, 0.25f),
    shape_of(1, 33, 2, 1, 36, 0, 0.5f)};

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

namespace {

// All operands of both passes; backward gets the host's out and logsumexp, so that no difference of
// forward is carried on.
void check_flash(const AttentionShape& s, const Operands& x, const Dropout& dropout,
                 std::int64_t groups, double limit) {
  const DType dtype = x.q.dtype;
  Tensor out(x.q.shape, dtype, 7), logsumexp({s.sequences, s.heads, s.length}, DType::fp32);
  const std::int64_t queries = s.heads / s.kv_heads * s.length;
  const auto forward = [&](const KernelTable& k, const Views& v) {
    k.flash_forward(s, dropout, v[0], v[1], v[2], v[3], v[4]);
  };
  Twins t = twins({x.q, x.k, x.v, out, logsumexp}, forward);
  CHECK_NEAR(t.cuda[3], t.host[3], limit);
  CHECK_NEAR(t.cuda[4], t.host[4], 1e-5);
  const auto backward = [&](const KernelTable& k, const Views& v) {
    k.flash_backward(s, dropout, v[5], v[0], v[1], v[2], v[3], v[4], v[6], v[7], v[8], v[9]);
  };
  t = twins({x.q, x.k, x.v, t.host[3], t.host[4], x.d_out, Tensor(x.q.shape, dtype, 7),
             Tensor(x.k.shape, dtype, 7), Tensor(x.v.shape, dtype, 7),
             Tensor({groups, queries * (1 + s.head_dim)}, DType::fp32)},
            backward);
  for (const std::size_t i : {6u, 7u, 8u}) {
    CAPTURE(i);
    CHECK_NEAR(t.cuda[i], t.host[i], limit);
  }
}

}  // namespace

TEST_CASE("streaming attention is the host's, forward and backward") {
  for_shapes([](const AttentionShape& s, DType dtype) {
    check_flash(s, operands_of(s, dtype), {}, 1, dtype == DType::fp32 ? 1e-5 : 2 * once(dtype));
  });
}

TEST_CASE("streaming attention drops what the host drops") {
  // Tensor cores draw one block for four scores where rows begin with a block: lengths and first
  // elements that are multiples of 4, and ones that are not.
  for (const AttentionShape& s : {kShapes[2], shape_of(2, 132, 3, 1, 64, 0),
                                  shape_of(1, 68, 2, 1, 128, 9), shape_of(1, 8, 1, 1, 16, 0)})
    for (const std::uint64_t first : {(1ull << 33) + 1, (1ull << 34) + 4})
      for (const DType dtype : kStorage) {
        CAPTURE(s.length);
        CAPTURE(first);
        CAPTURE(name_of(dtype));
        check_flash(s, operands_of(s, dtype),
                    {.rate = 0.3f, .key = {1, 2, 3}, .first_element = first}, 1,
                    dtype == DType::fp32 ? 1e-5 : 2 * once(dtype));
      }
}

TEST_CASE("backward takes as many groups at once as its scratch holds, with the same bits") {
  const AttentionShape s = kShapes[1];  // 4 groups: 2 sequences of 2 key heads
  for (const DType dtype : kStorage)
    for (const std::int64_t groups : {1, 2, 3, 9})
      check_flash(s, operands_of(s, dtype), {}, groups,
                  dtype == DType::fp32 ? 1e-5 : 2 * once(dtype));
}

// GPT-2 keeps q, k and v side by side; gradients go to the same places of another tensor.
TEST_CASE("heads are found in the columns of a wider tensor") {
  const AttentionShape s = shape_of(1, 66, 2, 2, 16, 0);
  const std::int64_t width = 32, stride = 3 * width + 8;
  for (const DType dtype : kStorage)
    for (const std::int64_t first : {0, 8, 3}) {
      CAPTURE(first);
      const auto columns = [&](const TensorView& x, std::int64_t which) {
        return Columns(x, first + which * width, width);
      };
      const double limit = dtype == DType::fp32 ? 1e-5 : 2 * once(dtype);
      const std::vector<Tensor> operands = {
          drawn({66, stride}, dtype, 1),  Tensor({66, width}, dtype),
          Tensor({66, 2}, DType::fp32),   drawn({66, width}, dtype, 2),
          Tensor({66, stride}, dtype, 7), Tensor({1, 66 * 17}, DType::fp32)};
      const Twins t = twins(operands, [&](const KernelTable& k, const Views& v) {
        const Columns q = columns(v[0], 0), key = columns(v[0], 1), value = columns(v[0], 2);
        k.flash_forward(s, {}, q, key, value, v[1], v[2]);
        k.flash_backward(s, {}, v[3], q, key, value, v[1], v[2], columns(v[4], 0), columns(v[4], 1),
                         columns(v[4], 2), v[5]);
      });
      CHECK_NEAR(t.cuda[1], t.host[1], limit);
      CHECK_NEAR(t.cuda[4], t.host[4], 2 * limit);  // reads each one's own rounded result
    }
}

// Rows of one key, scores far from 0, and a window of one key, whose value is the result.
TEST_CASE("large scores neither overflow nor lose the smaller ones") {
  for (const DType dtype : kStorage) {
    AttentionShape s = shape_of(1, 70, 1, 1, 16, 0);
    s.scale = 20;
    Operands x = operands_of(s, dtype);
    check_flash(s, x, {}, 1, dtype == DType::fp32 ? 1e-4 : 4 * once(dtype));
  }
}

// A scratch for one sequence, so that the four go one by one, and one for two of the four key
// heads.
TEST_CASE("cuDNN: fast mode's attention is what the host makes of it, in parts too") {
  cuda::AttentionLibrary* library = DeviceMemory::attention();
  for (const AttentionShape& s : {shape_of(4, 128, 8, 4, 64, 0), shape_of(1, 300, 4, 4, 128, 0),
                                  shape_of(2, 77, 6, 2, 80, 0)})
    for (const DType dtype : {DType::bf16, DType::fp16}) {
      CAPTURE(s.head_dim);
      CAPTURE(name_of(dtype));
      const Operands x = operands_of(s, dtype);
      const std::int64_t one = s.heads * s.length * (3 * s.head_dim + 1) + 4096;
      for (const std::int64_t floats : {s.sequences * one, one, one / 2}) {
        const Twins t = library_twins(
            {x.q, x.k, x.v, Tensor(x.q.shape, dtype),
             Tensor({s.sequences, s.heads, s.length}, DType::fp32), x.d_out,
             Tensor(x.q.shape, dtype), Tensor(x.k.shape, dtype), Tensor(x.v.shape, dtype),
             Tensor({floats}, DType::fp32)},
            [&](const KernelTable& k, const Views& v) {
              k.flash_forward(s, {}, v[0], v[1], v[2], v[3], v[4]);
              k.flash_backward(s, {}, v[5], v[0], v[1], v[2], v[3], v[4], v[6], v[7], v[8], v[9]);
            },
            cuda::Mode::fast);
        for (const std::size_t i : {3u, 6u, 7u, 8u}) {
          CAPTURE(i);
          CHECK_NEAR(t.cuda[i], t.host[i], 4 * once(dtype));
        }
        CHECK_NEAR(t.cuda[4], t.host[4], 1e-4);
      }
    }
  for (const auto& [why, count] : library->refusals())
    CHECK_MESSAGE(false, why << ", " << count << " times");
}

}  // namespace plimsoll::kernels::test
