#include <cmath>
#include <limits>

#include "tests/kernels/operands.h"
#include "tests/near.h"

namespace plimsoll::kernels::test {

namespace {
const KernelTable& k = host_kernels();
}  // namespace

// Random123 1.14, examples/kat_vectors: "philox4x32 10".
TEST_CASE("Philox4x32-10 gives the known answers of its authors") {
  CHECK(philox4x32_10({0, 0, 0, 0}, {0, 0}) ==
        Philox{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8});
  CHECK(philox4x32_10({0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff}, {0xffffffff, 0xffffffff}) ==
        Philox{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd});
  CHECK(philox4x32_10({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}) ==
        Philox{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1});
}

TEST_CASE("seed, step, stream and index each change the numbers") {
  const Philox base = random_block({1, 2, 3}, 4);
  CHECK(base != random_block({2, 2, 3}, 4));
  CHECK(base != random_block({1 + (1ull << 32), 2, 3}, 4));
  CHECK(base != random_block({1, 3, 3}, 4));
  CHECK(base != random_block({1, 2, 4}, 4));
  CHECK(base != random_block({1, 2, 3}, 5));
  CHECK(base != random_block({1, 2, 3}, 4 + (1ull << 32)));
}

// n = 100000, rate 0.1: the number dropped has mean 10000 and deviation sqrt(9000) = 95.
TEST_CASE("dropout drops at its rate and scales what stays by 1 / (1 - rate)") {
  const Tensor x({100000}, DType::fp32, 9);
  Tensor y(x.shape, DType::fp32);
  k.dropout(x, {.rate = 0.1f, .key = {5, 1, 2}}, false, y);
  int dropped = 0;
  for (const double v : y.values()) {
    if (v == 0)
      ++dropped;
    else
      REQUIRE(tests::near(v, 10, 1e-6));
  }
  CHECK(dropped > 10000 - 5 * 95);
  CHECK(dropped < 10000 + 5 * 95);
}

TEST_CASE("an element is dropped by its global index, wherever it is cut") {
  for (const DType dtype : kStorage) {
    const Tensor x = drawn({1300}, dtype, 1);
    Tensor whole(x.shape, dtype), pieces(x.shape, dtype);
    const Dropout dropout{.rate = 0.5f, .key = {5, 1, 2}, .first_element = 77};
    k.dropout(x, dropout, false, whole);
    for (const auto& [first, count] : {std::pair{0, 3}, {3, 514}, {517, 0}, {517, 783}}) {
      Dropout part = dropout;
      part.first_element += static_cast<std::uint64_t>(first);
      k.dropout(ConstTensorView(x).rows(first, count), part, false,
                TensorView(pieces).rows(first, count));
    }
    CHECK(whole == pieces);
  }
}

TEST_CASE("a rate of 0 keeps all, a rate of 1 nothing, and a masked copy may be added") {
  for (const DType dtype : kStorage) {
    const Tensor x = drawn({9}, dtype, 1);
    Tensor y(x.shape, dtype, 7);
    k.dropout(x, {.rate = 0}, false, y);
    CHECK(y == x);
    k.dropout(x, {.rate = 1}, false, y);
    CHECK(y == Tensor({9}, dtype, 0.0));
    k.dropout(x, {.rate = 0}, true, y);
    CHECK(y == x);
  }
}

// 1 + 2^-9 lies a quarter of the way from 1 to bf16's next number 1 + 2^-7: it goes up with
// probability 1/4. n = 40000: mean 10000, deviation sqrt(7500) = 87. fp16's next is 1 + 2^-10, and
// 1 + 2^-12 is a quarter of that way.
TEST_CASE("stochastic rounding goes up as often as it must to be right in the mean") {
  int up_bf16 = 0, up_fp16 = 0, up_small = 0, up_negative = 0;
  for (std::uint64_t i = 0; i < 40000; ++i) {
    const std::uint32_t random = random_block({3, 1, 0}, i)[0];
    up_bf16 += widened(stochastically_narrowed(Bf16{}, 1 + 0x1p-9f, random)) > 1;
    up_fp16 += widened(stochastically_narrowed(Fp16{}, 1 + 0x1p-12f, random)) > 1;
    up_small += widened(stochastically_narrowed(Fp16{}, 0x1p-26f, random)) > 0;  // of 2^-24
    up_negative += widened(stochastically_narrowed(Bf16{}, -1 - 0x1p-9f, random)) < -1;
  }
  for (const int up : {up_bf16, up_fp16, up_small, up_negative}) {
    CHECK(up > 10000 - 5 * 87);
    CHECK(up < 10000 + 5 * 87);
  }
}

TEST_CASE("stochastic rounding keeps what the type holds, and inf and NaN") {
  const std::uint32_t most = 0xffffffff;
  for (std::uint32_t bits = 0; bits < 0x10000; ++bits) {
    const Bf16 b{static_cast<std::uint16_t>(bits)};
    const Fp16 h{static_cast<std::uint16_t>(bits)};
    if (!std::isnan(widened(b)))
      REQUIRE(stochastically_narrowed(Bf16{}, widened(b), most).bits == bits);
    if (!std::isnan(widened(h)))
      REQUIRE(stochastically_narrowed(Fp16{}, widened(h), most).bits == bits);
  }
  const float nan = std::numeric_limits<float>::quiet_NaN();
  CHECK(std::isnan(widened(stochastically_narrowed(Bf16{}, nan, most))));
  CHECK(std::isnan(widened(stochastically_narrowed(Fp16{}, nan, most))));
}

}  // namespace plimsoll::kernels::test
