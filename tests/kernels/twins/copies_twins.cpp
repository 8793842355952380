// Casts, sums, optimizers, the gradient's norm: the same bits as the host.
#include <limits>

#include "tests/kernels/twins/twins.h"

namespace plimsoll::kernels::test {

namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();

// Beside plain numbers: zeros of either sign, inf, ties, subnormals of fp16 and what overflows it.
Tensor edges(std::int64_t n, DType dtype) {
  Tensor x = drawn({n}, dtype, 3);
  const double special[] = {-0.0,        kInf,    -kInf,   1 + 0x1p-8,  1 + 3 * 0x1p-8,
                            1 + 0x1p-11, 0x1p-24, 0x1p-25, 3 * 0x1p-26, 65504,
                            65519,       65520,   -70000,  3e38};
  for (std::int64_t i = 0; i < n && i / 2 < static_cast<std::int64_t>(std::size(special)); i += 2)
    x.set(i, special[i / 2]);
  return x;
}

}  // namespace

TEST_CASE("a cast between any two storage types has the host's bits") {
  for (const DType from : kStorage)
    for (const DType to : kStorage)
      for (const std::int64_t n : kCounts) {
        CAPTURE(n);
        const Twins t = twins({edges(n, from), Tensor({n}, to)},
                              [](const KernelTable& k, const Views& v) { k.cast(v[0], v[1]); });
        CHECK(t.cuda[1] == t.host[1]);
      }
}

TEST_CASE("add, scale and fill have the host's bits") {
  for (const DType x : kStorage)
    for (const DType y : kStorage)
      for (const std::int64_t n : kCounts) {
        CAPTURE(n);
        const Twins t = twins(
            {drawn({n}, x, 1), drawn({n}, y, 2), Tensor({n}, y, 5.0), Tensor({n}, DType::int32)},
            [](const KernelTable& k, const Views& v) {
              k.add(v[0], v[1]);
              k.scale(0.3f, v[1]);
              k.fill(-1.7f, v[2]);
              k.fill(-100, v[3]);
            });
        for (const std::size_t i : {1u, 2u, 3u}) CHECK(t.cuda[i] == t.host[i]);
      }
}

// Counts that end inside a byte, a thread's eight, a block of 64, and 256 blocks of them.
TEST_CASE("weights in 4 bits are dequantized to the host's bits, with scales in 8 bits too") {
  for (const DType dtype : kStorage)
    for (const std::int64_t n : {1, 7, 8, 9, 65, 2049, 5003, 64 * 256 + 3}) {
      CAPTURE(n);
      CAPTURE(name_of(dtype));
      const std::int64_t blocks = ceil_divide(n, kPackedBlock);
      const auto bytes = [](std::int64_t count, int seed) {
        Tensor t({count}, DType::uint8);
        for (std::int64_t i = 0; i < count; ++i)
          t.bytes[static_cast<std::size_t>(i)] = static_cast<std::byte>(i * 37 + seed);
        return t;
      };
      const Twins t =
          twins({bytes(ceil_divide(n, 2), 11), drawn({blocks}, DType::fp32, 4), Tensor({n}, dtype),
                 bytes(blocks, 5), drawn({ceil_divide(blocks, kScaleBlock)}, DType::fp32, 6),
                 Tensor({1}, DType::fp32, 0.37), Tensor({n}, dtype)},
                [](const KernelTable& k, const Views& v) {
                  k.dequantize({v[0], v[1], {}, {}}, v[2]);
                  k.dequantize({v[0], v[3], v[4], v[5]}, v[6]);
                });
      CHECK(t.cuda[2] == t.host[2]);
      CHECK(t.cuda[6] == t.host[6]);
      CHECK(t.host[2].bytes != Tensor({n}, dtype).bytes);
      CHECK(t.host[6].bytes != t.host[2].bytes);
    }
}

// Rows of any length: eight elements lie in one, in two, or in eight of them.
TEST_CASE(
    "weights in 8 bits are dequantized to the host's bits, signed and with a zero for each block") {
  for (const DType dtype : kStorage)
    for (const auto& [rows, row] :
         {std::pair(1, 1), {3, 7}, {9, 1}, {5, 8}, {4, 33}, {3, 256}, {2, 2049}, {700, 3}}) {
      const std::int64_t n = static_cast<std::int64_t>(rows) * row, block = row;
      CAPTURE(n);
      CAPTURE(name_of(dtype));
      const auto bytes = [](std::int64_t count, DType of, int seed) {
        Tensor t({count}, of);
        for (std::int64_t i = 0; i < count; ++i)
          t.bytes[static_cast<std::size_t>(i)] = static_cast<std::byte>(i * 37 + seed);
        return t;
      };
      const Twins t = twins(
          {bytes(n, DType::int8, 11), drawn({rows}, DType::fp32, 4), Tensor({n}, dtype),
           bytes(n, DType::uint8, 5), bytes(rows, DType::uint8, 6), Tensor({n}, dtype),
           Tensor({n}, dtype)},
          [=](const KernelTable& k, const Views& v) {
            k.dequantize({.codes = v[0], .scales = v[1], .block = block}, v[2]);
            k.dequantize({.codes = v[3], .scales = v[1], .zeros = v[4], .block = block}, v[5]);
            // Codes that do not begin at a multiple of 8 bytes.
            const std::int64_t one = v[0].elements() - 1;
            if (block == 1 && one > 0)
              k.dequantize({.codes = {static_cast<std::byte*>(v[0].data) + 1, DType::int8, {one}},
                            .scales = {v[1].data, DType::fp32, {one}},
                            .block = 1},
                           {v[6].data, v[6].dtype, {one}});
          });
      for (const std::size_t i : {2u, 5u, 6u}) CHECK(t.cuda[i] == t.host[i]);
      CHECK(t.host[2].bytes != Tensor({n}, dtype).bytes);
      CHECK(t.host[5].bytes != t.host[2].bytes);
    }
}

// Sides that end inside a tile of 16, and a matrix from either side of square.
TEST_CASE("products of a shorter axis, and bases, have the host's bits") {
  for (const DType dtype : kStorage)
    for (const auto& [rows, columns] :
         {std::pair(1, 1), {5, 70}, {16, 33}, {17, 17}, {70, 5}, {600, 31}}) {
      CAPTURE(rows);
      CAPTURE(columns);
      const std::int64_t k = std::min(rows, columns), rank = (k + 1) / 2;
      Tensor gram;
      gram.dtype = DType::fp64;
      gram.shape = {k, k};
      gram.bytes.resize(static_cast<std::size_t>(k * k) * 8);
      const Tensor before = gram;
      const Twins t = twins({drawn({rows, columns}, dtype, 7), gram, Tensor({rank, k}, dtype)},
                            [](const KernelTable& table, const Views& v) {
                              table.gram(v[0], v[1]);
                              table.basis(v[1], v[2]);
                            });
      CHECK(t.cuda[1] == t.host[1]);
      CHECK(t.cuda[2] == t.host[2]);
      CHECK(t.host[1] != before);
    }
}

// Words of Philox, the order of the roundings and the masters: everything is compared bit by bit.
TEST_CASE("AdamW has the host's bits, with a master and with stochastic rounding") {
  struct Kind {
    DType weight, state, gradient;
    bool master;
  };
  const Kind kinds[] = {{DType::fp32, DType::fp32, DType::fp32, false},
                        {DType::bf16, DType::fp32, DType::bf16, true},
                        {DType::fp16, DType::bf16, DType::fp32, true},
                        {DType::bf16, DType::bf16, DType::bf16, false},
                        {DType::fp16, DType::fp16, DType::fp16, false}};
  for (const Kind& kind : kinds)
    for (const std::int64_t n : kCounts) {
      CAPTURE(n);
      CAPTURE(name_of(kind.weight));
      const auto op = [](const KernelTable& k, const Views& v) {
        k.adamw({.weight = v[0],
                 .master = v[1],
                 .first_moment = v[2],
                 .second_moment = v[3],
                 .gradient = v[4],
                 .factor = v[5],
                 .overflow = v[6],
                 .first_element = (1ull << 32) - 3,
                 .key = {11, 4, 5}},
                {.learning_rate = 0.01f, .beta2 = 0.95f, .weight_decay = 0.1f, .step = 3});
      };
      Tensor second = drawn({n}, kind.state, 8);
      for (std::int64_t i = 0; i < n; ++i) second.set(i, std::abs(second.at(i)));
      const std::vector<Tensor> operands = {
          drawn({n}, kind.weight, 6),   kind.master ? drawn({n}, DType::fp32, 6) : Tensor(),
          drawn({n}, kind.state, 7),    second,
          drawn({n}, kind.gradient, 9), Tensor({1}, DType::fp32, 0.37),
          Tensor({1}, DType::int32, 0)};
      const Twins t = twins(operands, op);
      for (std::size_t i = 0; i < 4; ++i) {
        CAPTURE(i);
        CHECK(t.cuda[i] == t.host[i]);
      }
      CHECK(t.cuda[0].bytes != operands[0].bytes);
    }
}

TEST_CASE("SGD has the host's bits, with and without momentum, and skips an overflow") {
  for (const DType dtype : kStorage)
    for (const bool momentum : {false, true})
      for (const double overflow : {0.0, 1.0}) {
        const std::int64_t n = 1001;
        const std::vector<Tensor> operands = {
            drawn({n}, dtype, 6), momentum ? drawn({n}, dtype, 7) : Tensor(), drawn({n}, dtype, 9),
            Tensor({1}, DType::int32, overflow)};
        const Twins t = twins(operands, [&](const KernelTable& k, const Views& v) {
          k.sgd({.weight = v[0],
                 .master = {},
                 .first_moment = v[1],
                 .second_moment = {},
                 .gradient = v[2],
                 .factor = {},
                 .overflow = v[3],
                 .first_element = 5,
                 .key = {1, 2, 3}},
                {.learning_rate = 0.1f, .momentum = momentum ? 0.9f : 0, .weight_decay = 0.01f});
        });
        CHECK(t.cuda[0] == t.host[0]);
        CHECK(t.cuda[1] == t.host[1]);
        CHECK((t.cuda[0] == operands[0]) == (overflow != 0));
      }
}

TEST_CASE("Lion has the host's bits, with and without a master, and skips an overflow") {
  for (const DType dtype : kStorage)
    for (const bool master : {false, true})
      for (const double overflow : {0.0, 1.0}) {
        const std::int64_t n = 1001;
        const std::vector<Tensor> operands = {
            drawn({n}, dtype, 6), master ? drawn({n}, DType::fp32, 6) : Tensor(),
            drawn({n}, dtype, 7), drawn({n}, dtype, 9), Tensor({1}, DType::int32, overflow)};
        const Twins t = twins(operands, [&](const KernelTable& k, const Views& v) {
          k.lion({.weight = v[0],
                  .master = v[1],
                  .first_moment = v[2],
                  .second_moment = {},
                  .gradient = v[3],
                  .factor = {},
                  .overflow = v[4],
                  .first_element = 5,
                  .key = {1, 2, 3}},
                 {.learning_rate = 0.1f, .weight_decay = 0.01f});
        });
        for (std::size_t i = 0; i < 3; ++i) CHECK(t.cuda[i] == t.host[i]);
        CHECK((t.cuda[0] == operands[0]) == (overflow != 0));
      }
}

// Codes, scales and weights, at counts that end inside a block of 256 and inside a thread's eight.
TEST_CASE("AdamW and Lion with moments in 8 bits have the host's bits") {
  for (const DType dtype : kStorage)
    for (const bool adam : {true, false})
      for (const std::int64_t n : kCounts) {
        CAPTURE(n);
        const Tensor scales({ceil_divide(n, kStateBlock)}, DType::fp32, 0.25);
        Tensor codes({n}, DType::uint8);
        for (std::int64_t i = 0; i < n; ++i) codes.set(i, static_cast<double>(i * 37 % 256));
        const std::vector<Tensor> operands = {drawn({n}, dtype, 6),
                                              n == 255 ? drawn({n}, DType::fp32, 6) : Tensor(),
                                              codes,
                                              scales,
                                              adam ? codes : Tensor(),
                                              adam ? scales : Tensor(),
                                              drawn({n}, dtype, 9)};
        const Twins t = twins(operands, [&](const KernelTable& k, const Views& v) {
          const OptimizerTensors tensors{.weight = v[0],
                                         .master = v[1],
                                         .first_moment = v[2],
                                         .second_moment = v[4],
                                         .first_scales = v[3],
                                         .second_scales = v[5],
                                         .gradient = v[6],
                                         .first_element = 7,
                                         .key = {1, 2, 3}};
          if (adam)
            k.adamw(tensors, {.learning_rate = 0.01f, .weight_decay = 0.1f, .step = 3});
          else
            k.lion(tensors, {.learning_rate = 0.01f, .weight_decay = 0.1f});
        });
        for (std::size_t i = 0; i < 6; ++i) {
          CAPTURE(i);
          CHECK(t.cuda[i] == t.host[i]);
        }
        CHECK(t.cuda[3].bytes != operands[3].bytes);
      }
}

// 132 · 16 blocks of 256 threads with eight elements each are 4325376: the first threads come round
// again, and where operands are misaligned all of them do, eight times.
TEST_CASE("a tensor larger than a grid is gone through to its end") {
  const std::int64_t n = 132 * 16 * 256 * 8 + 4099;
  const Twins t =
      twins({drawn({n}, DType::bf16, 6), drawn({n}, DType::fp32, 9), Tensor({n}, DType::fp16)},
            [](const KernelTable& k, const Views& v) {
              k.cast(v[1], v[2]);
              k.sgd({.weight = v[0],
                     .master = {},
                     .first_moment = {},
                     .second_moment = {},
                     .gradient = v[1],
                     .factor = {},
                     .overflow = {},
                     .first_element = 0,
                     .key = {1, 2, 3}},
                    {.learning_rate = 0.1f});
            });
  CHECK(t.cuda[0] == t.host[0]);
  CHECK(t.cuda[2] == t.host[2]);
}

// A piece that begins inside a chunk and ends inside another one goes on from the sums it finds.
TEST_CASE("sums of squares have the host's bits wherever a tensor is cut") {
  for (const DType dtype : kStorage)
    for (const std::int64_t n : {1, 8, 300, 2049})
      for (const std::int64_t first : {0, 1, 255, 700}) {
        CAPTURE(n);
        CAPTURE(first);
        const Twins t =
            twins({drawn({n}, dtype, 4), drawn({16}, DType::fp64, 5), Tensor({1}, DType::fp64)},
                  [&](const KernelTable& k, const Views& v) {
                    add_squares(k, v[0], first, 256, v[1]);
                    k.total(v[1], all_of(v[1]), v[2]);
                  });
        CHECK(t.cuda[1] == t.host[1]);
        CHECK(t.cuda[2] == t.host[2]);
      }
}

// 150 pieces fill more than two launches, 300 totals more than one. Every third piece is empty, and
// pieces begin at all alignments.
TEST_CASE("many pieces and totals in one call have the host's bits") {
  for (const cuda::Mode mode : {cuda::Mode::deterministic, cuda::Mode::fast})
    for (const DType dtype : kStorage) {
      const Twins t = twins(
          {drawn({9000}, dtype, 4), drawn({1500}, DType::fp64, 5), Tensor({300}, DType::fp64)},
          [&](const KernelTable& k, const Views& v) {
            std::vector<SquaredPiece> pieces;
            std::vector<std::int64_t> ends;
            for (std::int64_t i = 0; i < 150; ++i) {
              const std::int64_t n = i % 3 == 2 ? 0 : 1 + i * 37 % 59;
              pieces.push_back(
                  {ConstTensorView(v[0]).rows(i * 59, n), i % 11, v[1].rows(i * 10, 10)});
            }
            for (std::int64_t i = 0; i < 300; ++i) ends.push_back((i + 1) * 5 - i % 3);
            k.sum_of_squares(pieces, 16);
            k.total(v[1], ends, v[2]);
          },
          mode);
      CHECK(t.cuda[1] == t.host[1]);
      CHECK(t.cuda[2] == t.host[2]);
    }
}

// Sums of squares of multiples of 1/64 are exact in fp64 in any order.
TEST_CASE("the fast sums of squares miss and repeat no element") {
  for (const std::int64_t n : {1, 300, 2049}) {
    const Twins t = twins(
        {drawn({n}, DType::bf16, 4), drawn({16}, DType::fp64, 5)},
        [&](const KernelTable& k, const Views& v) { add_squares(k, v[0], 77, 256, v[1]); },
        cuda::Mode::fast);
    CHECK(t.cuda[1] == t.host[1]);
  }
}

TEST_CASE("the clipping factor has the host's bits, also of inf and NaN") {
  for (const double squares : {0.0, 1e-12, 0.3, 1e30, kInf, std::nan("")})
    for (const float bound : {0.0f, 1e-6f, 1.0f}) {
      CAPTURE(squares);
      const Twins t = twins(
          {Tensor({1}, DType::fp64, squares), Tensor({1}, DType::fp32), Tensor({1}, DType::fp32),
           Tensor({1}, DType::int32)},
          [&](const KernelTable& k, const Views& v) { k.clip(v[0], bound, 8, v[1], v[2], v[3]); });
      CHECK(t.cuda[2] == t.host[2]);
      CHECK(t.cuda[3] == t.host[3]);
      if (squares == squares) CHECK(t.cuda[1] == t.host[1]);
    }
}

}  // namespace plimsoll::kernels::test
