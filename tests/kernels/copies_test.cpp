#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "tests/kernels/operands.h"

namespace plimsoll::kernels::test {

TEST_CASE("the host has every op of the table, without LAPACK all but eigenvectors") {
  // Every member is a function pointer, so that the table is an array of them.
  static_assert(sizeof(KernelTable) % sizeof(void (*)()) == 0);
  std::array<void (*)(), sizeof(KernelTable) / sizeof(void (*)())> ops{};
  std::memcpy(ops.data(), &host_kernels(), sizeof(ops));
  const std::ptrdiff_t missing = std::ranges::count(ops, nullptr);
  CHECK(missing == (host_kernels().eigenvectors == nullptr ? 1 : 0));
}

TEST_CASE("casts round to nearest even as PyTorch's do, subnormals, inf and NaN included") {
  const Json c = goldens("casts")[0];
  const std::vector<std::uint32_t> from = c["fp32"];
  const std::vector<std::uint32_t> bf16 = c["bf16"], fp16 = c["fp16"];
  REQUIRE(from.size() > 600);
  for (std::size_t i = 0; i < from.size(); ++i) {
    const auto x = std::bit_cast<float>(from[i]);
    CAPTURE(from[i]);
    if (std::isnan(x)) {  // payloads are free
      CHECK(std::isnan(widened(narrowed<Bf16>(x))));
      CHECK(std::isnan(widened(narrowed<Fp16>(x))));
    } else {
      CHECK(narrowed<Bf16>(x).bits == bf16[i]);
      CHECK(narrowed<Fp16>(x).bits == fp16[i]);
    }
  }
}

TEST_CASE("every 16-bit number survives the way to fp32 and back") {
  int wrong = 0;
  for (std::uint32_t bits = 0; bits < 0x10000; ++bits) {
    const Bf16 b{static_cast<std::uint16_t>(bits)};
    const Fp16 h{static_cast<std::uint16_t>(bits)};
    if (std::isnan(widened(b)) ? !std::isnan(widened(narrowed<Bf16>(widened(b))))
                               : narrowed<Bf16>(widened(b)).bits != bits)
      ++wrong;
    if (std::isnan(widened(h)) ? !std::isnan(widened(narrowed<Fp16>(widened(h))))
                               : narrowed<Fp16>(widened(h)).bits != bits)
      ++wrong;
  }
  CHECK(wrong == 0);
  // fp16: 0x0001 is 2^-24, 0x03ff the largest subnormal 1023 · 2^-24, 0x7bff is 65504.
  CHECK(widened(Fp16{0x0001}) == 0x1p-24f);
  CHECK(widened(Fp16{0x83ff}) == -1023 * 0x1p-24f);
  CHECK(widened(Fp16{0x7bff}) == 65504.0f);
  CHECK(widened(Fp16{0xfc00}) == -std::numeric_limits<float>::infinity());
}

TEST_CASE("a cast goes between any two storage types, block after block") {
  for (const DType from : kStorage)
    for (const DType to : kStorage) {
      const Tensor x = drawn({3, 401}, from, 1);  // 1203 elements: three blocks, the last one short
      Tensor y({3, 401}, to, 9);
      host_kernels().cast(x, y);
      CHECK(y.values() == x.values());
    }
}

TEST_CASE("add rounds its sum once, in the dtype of what it adds to") {
  // bf16 has 8 bits: 256 + 1 = 257 lies between 256 and 258, a tie that goes to the even 256;
  // 256 + 1.5 = 257.5 is nearer to 258. A fp32 operand is not rounded before the sum.
  Tensor y({2}, DType::bf16, {256, 256});
  host_kernels().add(Tensor({2}, DType::fp32, {1, 1.5}), y);
  CHECK(y.values() == std::vector<double>{256, 258});
}

TEST_CASE("scale and fill reach every element and no other") {
  for (const DType dtype : kStorage) {
    Tensor y({1200}, dtype, 3);
    host_kernels().scale(0.5f, TensorView(y).rows(1, 1198));
    CHECK(y.at(0) == 3);
    CHECK(y.at(1) == 1.5);
    CHECK(y.at(1198) == 1.5);
    CHECK(y.at(1199) == 3);
    host_kernels().fill(-2, TensorView(y).rows(0, 1199));
    CHECK(y.at(0) == -2);
    CHECK(y.at(1198) == -2);
    CHECK(y.at(1199) == 3);
  }
  Tensor ids({3}, DType::int32, 7);
  host_kernels().fill(0, ids);
  CHECK(ids.values() == std::vector<double>{0, 0, 0});
}

TEST_CASE("nothing is done to nothing") {
  Tensor none({0}, DType::bf16);
  host_kernels().cast(none, none);
  host_kernels().add(none, none);
  host_kernels().scale(2, none);
  host_kernels().fill(2, none);
  CHECK(none.elements() == 0);
}

TEST_CASE("a dtype that is no storage type, or a size that does not match, is an error") {
  Tensor x({4}, DType::int32, 1), y({4}, DType::fp32), z({3}, DType::fp32);
  CHECK_THROWS_AS(host_kernels().cast(x, y), Error);
  CHECK_THROWS_AS(host_kernels().cast(y, z), Error);
  CHECK_THROWS_AS(host_kernels().add(y, z), Error);
}

}  // namespace plimsoll::kernels::test
