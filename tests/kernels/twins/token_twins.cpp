// Embeddings, rotation, loss: what goes by token.
#include "tests/kernels/twins/twins.h"
#include "tests/near.h"

namespace plimsoll::kernels::test {

namespace {

// Ids below `rows`; a small vocabulary repeats them, so that rows are summed.
Tensor ids(std::int64_t tokens, std::int64_t rows, std::uint64_t seed) {
  Tensor t({tokens}, DType::int32);
  for (std::int64_t i = 0; i < tokens; ++i)
    t.set(i, static_cast<double>(random_block({seed, 0, 0}, static_cast<std::uint64_t>(i))[1] %
                                 static_cast<std::uint64_t>(rows)));
  return t;
}

}  // namespace

TEST_CASE("embeddings have the host's bits, forward and backward, with dropout and without") {
  struct Kind {
    std::int64_t tokens, length, vocabulary, width;
    bool positions;
    float rate;
  };
  const Kind kinds[] = {{1, 1, 1, 1, true, 0},       {33, 11, 5, 8, true, 0.1f},
                        {700, 100, 50, 37, true, 0}, {300, 300, 1000, 64, false, 0.1f},
                        {12, 7, 3, 2056, true, 0},   {2300, 2300, 7, 8, false, 0}};
  for (const Kind& c : kinds)
    for (const DType dtype : kStorage) {
      CAPTURE(c.tokens);
      CAPTURE(name_of(dtype));
      const Dropout dropout{.rate = c.rate, .key = {3, 2, 1}, .first_element = 1000};
      const auto positions = [&](std::uint64_t seed) {
        return c.positions ? drawn({c.length, c.width}, DType::fp32, seed) : Tensor();
      };
      const std::vector<Tensor> operands = {ids(c.tokens, c.vocabulary, 9),
                                            drawn({c.vocabulary, c.width}, dtype, 1),
                                            positions(2),
                                            Tensor({c.tokens, c.width}, dtype),
                                            drawn({c.tokens, c.width}, dtype, 3),
                                            drawn({c.vocabulary, c.width}, DType::fp32, 4),
                                            positions(5),
                                            Tensor({4, c.tokens}, DType::int32, 77)};
      const Twins t = twins(operands, [&](const KernelTable& k, const Views& v) {
        k.embedding_forward(v[0], v[1], v[2], c.length, dropout, v[3]);
        k.embedding_backward(v[0], c.length, dropout, v[4], v[5], v[6], v[7]);
      });
      for (const std::size_t i : {3u, 4u, 5u, 6u}) {
        CAPTURE(i);
        CHECK(t.cuda[i] == t.host[i]);
      }
    }
}

TEST_CASE("a token that is no row of the vocabulary is noted and found at the end") {
  for (const double bad : {-1.0, 4.0}) {
    Tensor tokens = ids(20, 4, 1);
    tokens.set(13, bad);
    const std::vector<Tensor> operands = {
        tokens, drawn({4, 8}, DType::bf16, 1), drawn({20, 8}, DType::bf16, 2),
        drawn({4, 8}, DType::bf16, 3), Tensor({4, 20}, DType::int32)};
    CHECK_THROWS_WITH_AS(on_device(
                             operands,
                             [](const KernelTable& k, const Views& v) {
                               k.embedding_forward(v[0], v[1], {}, 20, {}, v[2]);
                             },
                             cuda::Mode::deterministic, false),
                         doctest::Contains("token id"), Error);
    CHECK_THROWS_WITH_AS(on_device(
                             operands,
                             [](const KernelTable& k, const Views& v) {
                               k.embedding_backward(v[0], 20, {}, v[2], v[3], {}, v[4]);
                             },
                             cuda::Mode::deterministic, false),
                         doctest::Contains("token id"), Error);
  }
}

// The table's cosines and sines are rounded from fp64, where CUDA's are within 2 ulp: an fp32
// result can only differ where the exact value lies that near to the middle of two.
TEST_CASE("the rotation's table is the host's, and the rotation has its bits") {
  const RotaryFrequencies kinds[] = {
      {},
      {.theta = 500000, .factor = 8, .low_factor = 1, .high_factor = 4, .original_positions = 64}};
  for (const RotaryFrequencies& kind : kinds)
    for (const std::int64_t half : {1, 4, 8, 20, 32}) {
      const std::int64_t length = 70, tokens = 140, heads = 3, stride = heads * 2 * half + 16;
      CAPTURE(half);
      const Twins made =
          twins({Tensor({2, length, half}, DType::fp32)},
                [&](const KernelTable& k, const Views& v) { k.rotary_table(kind, v[0]); });
      CHECK_NEAR(made.cuda[0], made.host[0], 1e-8);
      for (const DType dtype : kStorage)
        for (const std::int64_t first : {0, 5, 16}) {
          const Twins t = twins({made.host[0], drawn({tokens, stride}, dtype, 2)},
                                [&](const KernelTable& k, const Views& v) {
                                  const Columns x(v[1], first, heads * 2 * half);
                                  k.rotary(v[0], false, x);
                                  k.rotary(v[0], false, x);
                                  k.rotary(v[0], true, x);
                                });
          CHECK(t.cuda[1] == t.host[1]);
        }
    }
}

TEST_CASE("capped logits are the host's") {
  for (const DType dtype : kStorage)
    for (const std::int64_t width : {1, 50, 511}) {
      const Twins t = twins({drawn({3, width}, dtype, 1)},
                            [&](const KernelTable& k, const Views& v) { k.soft_cap(0.5f, v[0]); });
      CHECK_NEAR(t.cuda[0], t.host[0], dtype == DType::fp32 ? 2e-6 : once(dtype));
    }
}

TEST_CASE("losses and gradients of logits are the host's; their sum has its bits") {
  for (const DType dtype : kStorage)
    for (const std::int64_t width : {1, 8, 50, 511, 4099, 8200}) {
      CAPTURE(name_of(dtype));
      CAPTURE(width);
      const std::int64_t rows = 7;
      Tensor targets = ids(rows, width, 3);
      targets.set(2, kIgnoreIndex);
      for (const auto& [keep, cap] : {std::pair{false, 0.0f}, {true, 0.0f}, {true, 0.5f}}) {
        const std::vector<Tensor> operands = {targets,
                                              drawn({rows, width}, dtype, 1),
                                              drawn({rows, width}, dtype, 1),
                                              Tensor({rows}, DType::fp32, 9),
                                              keep ? Tensor({rows}, DType::fp32) : Tensor(),
                                              Tensor({1}, DType::fp64, 0.25)};
        const Twins t = twins(operands, [&](const KernelTable& k, const Views& v) {
          k.cross_entropy(v[0], kIgnoreIndex, true, 0.125f, cap, v[1], v[3], v[4]);
          k.loss_sum(v[3], 0.5, v[5]);
          if (keep) k.cross_entropy_backward(v[0], kIgnoreIndex, 0.125f, cap, v[4], v[2]);
        });
        const double limit = dtype == DType::fp32 ? 2e-6 : once(dtype);
        CHECK_NEAR(t.cuda[1], t.host[1], limit);
        CHECK_NEAR(t.cuda[2], t.host[2], limit);
        CHECK_NEAR(t.cuda[3], t.host[3], 2e-6);
        CHECK_NEAR(t.cuda[4], t.host[4], 2e-6);
        double sum = 0;  // in the order of the rows
        for (const double loss : t.cuda[3].values()) sum += loss;
        CHECK(t.cuda[5].at(0) == 0.25 + 0.5 * sum);
        if (keep) CHECK(t.cuda[2] == t.cuda[1]);
      }
    }
}

TEST_CASE("many losses are summed in the host's order") {
  for (const std::int64_t rows : {255, 256, 257, 3000}) {
    const Twins t =
        twins({drawn({rows}, DType::fp32, 5), Tensor({1}, DType::fp64, 0.25)},
              [](const KernelTable& k, const Views& v) { k.loss_sum(v[0], 0.1, v[1]); });
    CHECK(t.cuda[1] == t.host[1]);
  }
}

TEST_CASE("a loss without a gradient is the same and leaves the logits alone") {
  for (const DType dtype : kStorage)
    for (const std::int64_t width : {8, 50, 4099}) {
      const Tensor logits = drawn({7, width}, dtype, 1);
      const Twins t = twins({ids(7, width, 3), logits, logits, Tensor({7}, DType::fp32, 9),
                             Tensor({7}, DType::fp32, 9)},
                            [&](const KernelTable& k, const Views& v) {
                              k.cross_entropy(v[0], kIgnoreIndex, false, 1, 0, v[1], v[3], {});
                              k.cross_entropy(v[0], kIgnoreIndex, true, 1, 0, v[2], v[4], {});
                            });
      for (const std::vector<Tensor>* made : {&t.host, &t.cuda}) {
        CHECK((*made)[1] == logits);
        CHECK((*made)[3] == (*made)[4]);
      }
    }
}

// 50 logits and 8200 in rows of 56 and 8208: what is behind them is NaN, and stays.
TEST_CASE("logits may stand in wider rows") {
  for (const DType dtype : kStorage)
    for (const std::int64_t width : {50, 8195}) {
      const std::int64_t rows = 3, stride = (width + 7) / 8 * 8;
      Tensor logits = drawn({rows, stride}, dtype, 1), dense({rows, width}, dtype);
      for (std::int64_t i = 0; i < rows * stride; ++i)
        if (i % stride < width)
          dense.set(i / stride * width + i % stride, logits.at(i));
        else
          logits.set(i, std::nan(""));
      Tensor targets = ids(rows, width, 3);
      targets.set(1, kIgnoreIndex);
      const Twins t = twins({targets, logits, dense, Tensor({rows}, DType::fp32),
                             Tensor({rows}, DType::fp32), logits},
                            [&](const KernelTable& k, const Views& v) {
                              const Columns wide(v[1], 0, width), again(v[5], 0, width);
                              k.cross_entropy(v[0], kIgnoreIndex, true, 0.5f, 0, wide, v[3], v[4]);
                              k.cross_entropy_backward(v[0], kIgnoreIndex, 0.5f, 0, v[4], again);
                              k.cross_entropy(v[0], kIgnoreIndex, true, 0.5f, 0, v[2], v[3], {});
                            });
      for (const std::vector<Tensor>* made : {&t.host, &t.cuda})
        for (std::int64_t i = 0; i < rows * stride; ++i)
          for (const std::size_t which : {1, 5}) {
            const double value = (*made)[which].at(i);
            if (i % stride < width)
              // Both are rounded once.
              CHECK(tests::near(value, (*made)[2].at(i / stride * width + i % stride),
                                2 * once(dtype)));
            else
              CHECK(value != value);
          }
    }
}

TEST_CASE("logits of minus infinity and far-off maxima do not spoil a row") {
  Tensor logits({2, 600}, DType::fp32, -std::numeric_limits<double>::infinity());
  logits.set(3, 1e4);
  logits.set(599, 1e4 - 1);
  for (std::int64_t i = 600; i < 1200; ++i) logits.set(i, -1e30);
  Tensor targets({2}, DType::int32);
  targets.set(0, 599);
  const Twins t =
      twins({targets, logits, Tensor({2}, DType::fp32)}, [](const KernelTable& k, const Views& v) {
        k.cross_entropy(v[0], kIgnoreIndex, true, 1, 0, v[1], v[2], {});
      });
  CHECK_NEAR(t.cuda[1], t.host[1], 2e-6);
  CHECK_NEAR(t.cuda[2], t.host[2], 2e-6);
  // 1 + log(1 + e^-1), to half of what lies between two floats at 1e4: the row's log-sum-exp is
  // one.
  CHECK(std::abs(t.cuda[2].at(0) - 1.3132617) <= 0x1p-11);
}

TEST_CASE("a target outside of the logits is noted and found at the end") {
  const std::vector<Tensor> operands = {Tensor({1}, DType::int32, 50.0),
                                        drawn({1, 50}, DType::bf16, 1), Tensor({1}, DType::fp32)};
  CHECK_THROWS_WITH_AS(on_device(
                           operands,
                           [](const KernelTable& k, const Views& v) {
                             k.cross_entropy(v[0], kIgnoreIndex, true, 1, 0, v[1], v[2], {});
                           },
                           cuda::Mode::deterministic, false),
                       doctest::Contains("target 50"), Error);
}

}  // namespace plimsoll::kernels::test
