// Casts to 8 bits and their GEMMs.
#include <cmath>
#include <limits>

#include "tests/kernels/twins/twins.h"

namespace plimsoll::kernels::test {

namespace {

constexpr DType kEight[] = {DType::fp8_e4m3, DType::fp8_e5m2};

// Magnitudes over many powers of two, so that normal numbers, those below and zeros are met.
Tensor spread(Extents shape, DType dtype, std::uint64_t seed) {
  Tensor x = drawn(shape, dtype, seed);
  for (std::int64_t i = 0; i < x.elements(); ++i)
    x.set(i, std::ldexp(x.at(i), static_cast<int>(i * 7 % 41) - 30));
  return x;
}

// y, the gradient of x and that of the weight, as Float8Linear multiplies them.
void check_gemms(std::int64_t tokens, std::int64_t in, std::int64_t out, DType result,
                 bool library) {
  CAPTURE(tokens);
  CAPTURE(in);
  CAPTURE(out);
  CAPTURE(name_of(result));
  const DType four = DType::fp8_e4m3, five = DType::fp8_e5m2;
  const std::vector<Tensor> operands = {
      drawn({tokens, in}, four, 1), drawn({out, in}, four, 2), drawn({tokens, out}, five, 3),
      drawn({in, out}, four, 4), drawn({out, tokens}, five, 5), drawn({in, tokens}, four, 6),
      Tensor({2}, DType::fp32, 0.5), Tensor({2}, DType::fp32, 3),
      // The library's bias of a result in fp32 has 16 bits.
      library && result == DType::fp32 ? Tensor() : drawn({out}, result, 7),
      drawn({tokens, out}, result, 8), drawn({tokens, in}, result, 9), drawn({out, in}, result, 10),
      Tensor({1 << 16}, DType::fp32)};
  const Op op = [](const KernelTable& k, const Views& v) {
    k.float8_gemm({v[0], v[6]}, {v[1], v[7]}, v[8], {.fast_sums = true}, v[9], v[12]);
    k.float8_gemm({v[2], v[7]}, {v[3], v[6]}, {}, {}, v[10], v[12]);
    k.float8_gemm({v[4], v[6]}, {v[5], v[6]}, {}, {.accumulate = true}, v[11], v[12]);
  };
  // Tensor cores keep some 14 bits of a sum of products in 8 bits.
  const double limit =
      (library ? 0x1p-9 : 1e-5) + (result == DType::fp32 ? 0 : 1.01 * once(result) + 1e-3);
  const auto check = [&](const Twins& t) {
    for (const std::size_t i : {9u, 10u, 11u}) CHECK_NEAR(t.cuda[i], t.host[i], limit);
  };
  if (library)
    for (const cuda::Mode mode : {cuda::Mode::deterministic, cuda::Mode::fast})
      check(library_twins(operands, op, mode));
  else
    check(twins(operands, op));
}

}  // namespace

// Rows and columns around a tile of 128 by 128, a thread's four by eight and sixteen, more blocks
// than there is scratch, and so many elements that a thread takes several at once.
TEST_CASE("casts to 8 bits, straight and turned, and their scales have the host's bits") {
  for (const DType dtype : kStorage)
    for (const DType to : kEight)
      for (const auto& [rows, columns] : {std::array{1, 1},
                                          {5, 16},
                                          {128, 64},
                                          {129, 65},
                                          {200, 72},
                                          {16, 264},
                                          {3, 7},
                                          {128, 128},
                                          {272, 264}}) {
        CAPTURE(rows);
        CAPTURE(columns);
        CAPTURE(name_of(dtype));
        const Extents shape{rows, columns}, turned{columns, rows};
        const Twins t =
            twins({spread(shape, dtype, 3), Tensor({2}, DType::fp32), Tensor({3}, DType::fp32),
                   Tensor(shape, to), Tensor(turned, to), Tensor(shape, to), Tensor(turned, to)},
                  [&](const KernelTable& k, const Views& v) {
                    k.float8_scale(v[0], to, v[1], v[2]);
                    k.to_float8(v[0], v[1], v[3], v[4]);
                    k.to_float8(v[0], v[1], v[5], {});
                    k.to_float8(v[0], v[1], {}, v[6]);
                  });
        CHECK(t.cuda[1] == t.host[1]);
        for (const std::size_t i : {3u, 4u, 5u, 6u}) CHECK(t.cuda[i] == t.host[i]);
        CHECK(t.cuda[5] == t.cuda[3]);
        CHECK(t.cuda[6] == t.cuda[4]);
      }
}

TEST_CASE("numbers that 8 bits do not have are cast as on the host: too large, inf, NaN, nothing") {
  constexpr double kInf = std::numeric_limits<double>::infinity();
  for (const DType to : kEight) {
    const auto cast = [&](const std::vector<double>& values, double factor) {
      const Extents shape{1, std::ssize(values)};
      const Twins t =
          twins({Tensor(shape, DType::fp32, values), Tensor({2}, DType::fp32, {1 / factor, factor}),
                 Tensor(shape, to)},
                [](const KernelTable& k, const Views& v) { k.to_float8(v[0], v[1], v[2], {}); });
      CHECK(t.cuda[2] == t.host[2]);
    };
    cast({449, -464, 480, 57345, -61440, 65536, 1e30, kInf, -kInf, std::nan(""), 0, -0.0, 1e-30},
         1);
    cast({3, -5, 1e-3, 448, 7}, 0.5);
  }
  const Twins none =
      twins({Tensor({4, 4}, DType::bf16), Tensor({2}, DType::fp32), Tensor({1}, DType::fp32)},
            [](const KernelTable& k, const Views& v) {
              k.float8_scale(v[0], DType::fp8_e4m3, v[1], v[2]);
            });
  CHECK(none.cuda[1] == none.host[1]);
  CHECK(none.host[1].at(1) == static_cast<double>(static_cast<float>(448 / 1e-12)));
}

TEST_CASE("GEMMs in 8 bits are the host's") {
  for (const DType result : kStorage) {
    check_gemms(1, 1, 1, result, false);
    check_gemms(16, 32, 48, result, false);
    check_gemms(65, 33, 70, result, false);
  }
}

TEST_CASE("cuBLASLt: GEMMs in 8 bits") {
  for (const DType result : kStorage)
    for (const auto& [tokens, in, out] : {std::array{16, 16, 16}, {64, 128, 256}, {48, 272, 80}})
      check_gemms(tokens, in, out, result, true);
  for (const auto& [why, count] : DeviceMemory::library()->refusals())
    CHECK_MESSAGE(why.find("fp8") == std::string::npos, why << ", " << count << " times");
}

}  // namespace plimsoll::kernels::test
