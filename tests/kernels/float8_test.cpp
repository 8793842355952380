// Casts to 8 bits and their GEMMs, against torch and torchao (tools/oracle/float8_goldens.py) and
// by hand.
#include <cmath>
#include <limits>

#include "tests/kernels/operands.h"

namespace plimsoll::kernels::test {

namespace {

const KernelTable& k = host_kernels();

Json golden_file() {
  std::ifstream file(PLIMSOLL_GOLDEN "/kernels/float8.json");
  return Json::parse(file);
}

struct Cast {
  Tensor values, transposed, scale;
  Float8Matrix straight() const { return {values, scale}; }
  Float8Matrix turned() const { return {transposed, scale}; }
};
Cast cast(const Tensor& x, DType to) {
  Cast made{Tensor(x.shape, to), Tensor({x.shape[1], x.shape[0]}, to), Tensor({2}, DType::fp32)};
  Tensor partial({3}, DType::fp32);
  k.float8_scale(x, to, made.scale, partial);
  k.to_float8(x, made.scale, made.values, made.transposed);
  return made;
}

std::vector<std::uint8_t> codes_of(const Tensor& x) {
  std::vector<std::uint8_t> codes;
  for (const std::byte b : x.bytes) codes.push_back(std::to_integer<std::uint8_t>(b));
  return codes;
}

// One row.
Tensor row(const Json& bits) {
  std::vector<double> values;
  for (const Json& word : bits)
    values.push_back(static_cast<double>(std::bit_cast<float>(word.get<std::uint32_t>())));
  return {{1, std::ssize(values)}, DType::fp32, values};
}

}  // namespace

TEST_CASE("each code of 8 bits stands for torch's number, and is that number's code") {
  const Json golden = golden_file()["codes"];
  for (int code = 0; code < 256; ++code) {
    CAPTURE(code);
    const E4m3 four{static_cast<std::uint8_t>(code)};
    const E5m2 five{static_cast<std::uint8_t>(code)};
    const Json &a = golden["fp8_e4m3"][static_cast<std::size_t>(code)],
               &b = golden["fp8_e5m2"][static_cast<std::size_t>(code)];
    if (a.is_null()) {
      CHECK(std::isnan(widened(four)));
    } else {
      CHECK(widened(four) == a.get<float>());
      CHECK(narrowed<E4m3>(a.get<float>()).bits == code);
    }
    if (b.is_null()) {
      CHECK(!std::isfinite(widened(five)));
    } else {
      CHECK(widened(five) == b.get<float>());
      CHECK(narrowed<E5m2>(b.get<float>()).bits == code);
    }
  }
}

TEST_CASE("what is too large for 8 bits becomes the largest number, and a NaN stays one") {
  constexpr float kInf = std::numeric_limits<float>::infinity();
  for (const float x : {449.0f, 464.0f, 1e30f, kInf}) {
    CHECK(widened(narrowed<E4m3>(x)) == 448);
    CHECK(widened(narrowed<E4m3>(-x)) == -448);
  }
  for (const float x : {57345.0f, 61440.0f, 1e30f, kInf}) {
    CHECK(widened(narrowed<E5m2>(x)) == 57344);
    CHECK(widened(narrowed<E5m2>(-x)) == -57344);
  }
  CHECK(std::isnan(widened(narrowed<E4m3>(std::nanf("")))));
  CHECK(std::isnan(widened(narrowed<E5m2>(std::nanf("")))));
}

TEST_CASE("scales and codes are torchao's, bit for bit") {
  int cases = 0;
  const Json golden = golden_file();
  for (const Json& c : golden["casts"]) {
    const DType to = *dtype_from(c["to"].get<std::string>());
    CAPTURE(c["to"]);
    const Tensor x = row(c["x"]);
    CAPTURE(x.elements());
    const Cast made = cast(x, to);
    const auto factor = static_cast<float>(made.scale.at(1));
    CHECK(std::bit_cast<std::uint32_t>(factor) == c["scale"].get<std::uint32_t>());
    CHECK(static_cast<float>(made.scale.at(0)) == 1 / factor);
    CHECK(codes_of(made.values) == c["codes"].get<std::vector<std::uint8_t>>());
    CHECK(codes_of(made.transposed) == codes_of(made.values));  // a row, turned
    ++cases;
  }
  CHECK(cases == 10);
}

// Codes of 1, 2, 3, 4, 448 with scale 1: exponents from 7 on, three bits behind.
TEST_CASE("a matrix is cast as it lies and turned, or one of the two alone") {
  const Tensor x({2, 3}, DType::bf16, {1, 2, 3, 4, -448, 0});
  const std::vector<std::uint8_t> straight = {0x38, 0x40, 0x44, 0x48, 0xfe, 0x00};
  const std::vector<std::uint8_t> turned = {0x38, 0x48, 0x40, 0xfe, 0x44, 0x00};
  const Cast both = cast(x, DType::fp8_e4m3);
  CHECK(both.scale.values() == std::vector<double>{1, 1});
  CHECK(codes_of(both.values) == straight);
  CHECK(codes_of(both.transposed) == turned);
  Tensor one({2, 3}, DType::fp8_e4m3), other({3, 2}, DType::fp8_e4m3);
  k.to_float8(x, both.scale, one, {});
  k.to_float8(x, both.scale, {}, other);
  CHECK(codes_of(one) == straight);
  CHECK(codes_of(other) == turned);
}

// a = [1 2; 3 4] with scale 2, b = [1 0; 1 1] with scale 1/4: a · bᵀ = [1 3; 3 7], times 1/2; with
// the bias [10 20], added to 1.
TEST_CASE("a GEMM in 8 bits multiplies codes, then both scales, then adds") {
  Tensor panels({12}, DType::fp32);
  const Tensor a({2, 2}, DType::fp32, {1, 2, 3, 4}), b({2, 2}, DType::fp32, {1, 0, 1, 1});
  const Tensor unit({2}, DType::fp32, {1, 1}), two({2}, DType::fp32, {2, 0.5}),
      quarter({2}, DType::fp32, {0.25, 4});
  Tensor left({2, 2}, DType::fp8_e5m2), right({2, 2}, DType::fp8_e4m3);
  k.to_float8(a, unit, left, {});
  k.to_float8(b, unit, right, {});
  const Tensor bias({2}, DType::bf16, {10, 20});
  for (const DType dtype : kStorage) {
    Tensor y({2, 2}, dtype, 1);
    k.float8_gemm({left, two}, {right, quarter}, {}, {}, y, panels);
    CHECK(y.values() == std::vector<double>{0.5, 1.5, 1.5, 3.5});
    k.float8_gemm({left, two}, {right, quarter}, {}, {.accumulate = true}, y, panels);
    CHECK(y.values() == std::vector<double>{1, 3, 3, 7});
    k.float8_gemm({left, two}, {right, quarter}, bias, {.fast_sums = true}, y, panels);
    CHECK(y.values() == std::vector<double>{10.5, 21.5, 11.5, 23.5});
  }
}

TEST_CASE("operands that no GEMM in 8 bits takes are errors") {
  Tensor panels({12}, DType::fp32), y({2, 2}, DType::fp32);
  const Tensor unit({2}, DType::fp32, 1), four({2, 2}, DType::fp8_e4m3),
      five({2, 2}, DType::fp8_e5m2), wide({2, 3}, DType::fp8_e4m3), half({2, 2}, DType::bf16),
      one({1}, DType::fp32);
  const auto refused = [&](const Float8Matrix& a, const Float8Matrix& b, const char* why) {
    CHECK_THROWS_WITH_AS(k.float8_gemm(a, b, {}, {}, y, panels), doctest::Contains(why), Error);
  };
  refused({five, unit}, {five, unit}, "one of the operands is e4m3");
  refused({half, unit}, {four, unit}, "8 bits are e4m3 or e5m2");
  refused({four, one}, {four, unit}, "a scale is two values of fp32");
  refused({four, unit}, {wide, unit}, "the shapes of operands and result match");
  Tensor to({2, 2}, DType::bf16), scale({2}, DType::fp32, 1);
  CHECK_THROWS_WITH_AS(k.to_float8(half, scale, to, {}), doctest::Contains("8 bits are"), Error);
  CHECK_THROWS_WITH_AS(k.float8_scale(half, DType::bf16, scale, panels),
                       doctest::Contains("8 bits are"), Error);
}

// As torchao's Float8Linear: what is multiplied are the codes, so that only the order of sums and
// the rounding of results are left.
TEST_CASE("a linear layer and its gradients in 8 bits are torchao's") {
  const Json golden = golden_file();
  for (const Json& c : golden["linears"]) {
    const DType dtype = DType::bf16;
    Tensor panels({48}, DType::fp32);
    const Cast x = cast(input(c, "x", dtype), DType::fp8_e4m3),
               weight = cast(input(c, "weight", dtype), DType::fp8_e4m3),
               d_y = cast(input(c, "d_y", dtype), DType::fp8_e5m2);
    Tensor y(input(c, "d_y", dtype).shape, dtype), d_x(input(c, "x", dtype).shape, dtype),
        d_weight(input(c, "weight", dtype).shape, dtype);
    k.float8_gemm(x.straight(), weight.straight(), {}, {.fast_sums = true}, y, panels);
    k.float8_gemm(d_y.straight(), weight.turned(), {}, {}, d_x, panels);
    k.float8_gemm(d_y.turned(), x.turned(), {}, {}, d_weight, panels);
    CHECK_NEAR(y, c["out"]["y"], once(dtype));
    CHECK_NEAR(d_x, c["out"]["d_x"], once(dtype));
    CHECK_NEAR(d_weight, c["out"]["d_weight"], once(dtype));
  }
}

}  // namespace plimsoll::kernels::test
