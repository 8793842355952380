#include <limits>

#include "tests/kernels/operands.h"

namespace plimsoll::kernels::test {

namespace {

// [rows, columns] as [columns, rows].
Tensor transposed(const Tensor& x) {
  Tensor y({x.shape[1], x.shape[0]}, x.dtype);
  for (std::int64_t r = 0; r < x.shape[0]; ++r)
    for (std::int64_t c = 0; c < x.shape[1]; ++c)
      y.set(c * x.shape[0] + r, x.at(r * x.shape[1] + c));
  return y;
}
Json transposed(const Json& x) {
  const Tensor t = transposed(golden(x, DType::fp64));
  return {{"shape", {t.shape[0], t.shape[1]}}, {"values", t.values()}};
}

}  // namespace

// 48 elements of panels: tiles of 4 × 4, so that every case but the smallest has ragged tiles.
TEST_CASE("GEMMs and their gradients are PyTorch's, for both layouts of the weight") {
  for_goldens("linear", [](const Json& c, DType dtype) {
    const KernelTable& k = host_kernels();
    Tensor panels({48}, DType::fp32);
    const Tensor x = input(c, "x", dtype), bias = input(c, "bias", dtype),
                 d_y = input(c, "d_y", dtype), straight = input(c, "weight", dtype);
    for (const bool flip : {false, true}) {
      const Tensor weight = flip ? transposed(straight) : straight;
      const LinearOptions options{.transposed = flip};
      Tensor y(d_y.shape, dtype, 7), d_x(x.shape, dtype, 7), d_weight(weight.shape, dtype, 7);
      k.linear_forward(x, weight, bias, options, y, panels);
      k.linear_backward_input(d_y, weight, options, d_x, panels);
      k.linear_backward_weight(d_y, x, options, d_weight, panels);
      CHECK_NEAR(y, c["out"]["y"], once(dtype));
      CHECK_NEAR(d_x, c["out"]["d_x"], once(dtype));
      CHECK_NEAR(d_weight, flip ? transposed(c["out"]["d_weight"]) : c["out"]["d_weight"],
                 once(dtype));
    }
    Tensor d_bias(bias.shape, dtype), partial({4, bias.elements()}, DType::fp32);
    k.bias_backward(d_y, d_bias, partial);
    CHECK_NEAR(d_bias, c["out"]["d_bias"], once(dtype));
  });
}

TEST_CASE("a bias added afterwards is the bias of the GEMM, in fp32") {
  const Json c = goldens("linear")[3];
  const Tensor x = input(c, "x", DType::fp32), weight = input(c, "weight", DType::fp32),
               bias = input(c, "bias", DType::fp32);
  Tensor y(golden(c["out"]["y"], DType::fp32).shape, DType::fp32);
  host_kernels().linear_forward(x, weight, {}, {}, y, {});
  host_kernels().bias_add(bias, y);
  CHECK_NEAR(y, c["out"]["y"], 1e-6);
}

// x = [1 2; 3 4], w = [1 0; 1 1] (out × in): x · wᵀ = [1 3; 3 7]. Scaled by 2 and added to 10:
// [12 16; 16 24]; with the bias [1 -1], which is not scaled, [13 15; 17 23]. All exact in 16 bits.
TEST_CASE("a GEMM is scaled, its bias is not, and it is added to what is there") {
  for (const DType dtype : kStorage) {
    Tensor panels({12}, DType::fp32);
    const Tensor x({2, 2}, dtype, {1, 2, 3, 4}), w({2, 2}, dtype, {1, 0, 1, 1}),
        bias({2}, dtype, {1, -1});
    Tensor y({2, 2}, dtype, 10);
    host_kernels().linear_forward(x, w, {}, {.accumulate = true, .scale = 2}, y, panels);
    CHECK(y.values() == std::vector<double>{12, 16, 16, 24});
    y = Tensor({2, 2}, dtype, 10);
    host_kernels().linear_forward(x, w, bias, {.accumulate = true, .scale = 2}, y, panels);
    CHECK(y.values() == std::vector<double>{13, 15, 17, 23});
  }
}

// d_y = [1 2], w = [1 0; 3 1] (out × in), x = [5 7]: d_y · w = [7 2], d_yᵀ · x = [5 7; 10 14]; both
// times 2, added to 1.
TEST_CASE("gradients are scaled as the GEMM was, and added to what is there") {
  for (const DType dtype : kStorage) {
    const LinearOptions options{.accumulate = true, .scale = 2};
    Tensor panels({12}, DType::fp32);
    const Tensor d_y({1, 2}, dtype, {1, 2}), w({2, 2}, dtype, {1, 0, 3, 1}),
        x({1, 2}, dtype, {5, 7});
    Tensor d_x({1, 2}, dtype, 1), d_weight({2, 2}, dtype, 1);
    host_kernels().linear_backward_input(d_y, w, options, d_x, panels);
    CHECK(d_x.values() == std::vector<double>{15, 5});
    host_kernels().linear_backward_weight(d_y, x, options, d_weight, panels);
    CHECK(d_weight.values() == std::vector<double>{11, 15, 21, 29});
  }
}

// Gradients of 16-bit operands into fp32: 1 + 2^-10 + 2^-20 needs 21 bits, which bf16 has not.
TEST_CASE("each operand has its own dtype") {
  const Tensor d_y({3, 1}, DType::bf16, {1, 0x1p-5, 0x1p-10}), x = d_y;
  Tensor d_weight({1, 1}, DType::fp32), panels({3}, DType::fp32);
  host_kernels().linear_backward_weight(d_y, x, {}, d_weight, panels);
  CHECK(d_weight.at(0) == 1 + 0x1p-10 + 0x1p-20);
}

// Sums in bf16 would stop at 256: 256 + 1 rounds to 256.
TEST_CASE("a long sum of 16-bit GEMMs is kept in fp32 across the tiles") {
  const Tensor x({1, 1000}, DType::bf16, 1), w({1, 1000}, DType::bf16, 1);
  Tensor y({1, 1}, DType::bf16), panels({30}, DType::fp32);  // tiles of 3 × 3
  host_kernels().linear_forward(x, w, {}, {}, y, panels);
  CHECK(y.at(0) == 1000);
}

TEST_CASE("no tokens leave a gradient that is added to as it is, and zero another") {
  for (const DType dtype : kStorage) {
    Tensor d_y({0, 2}, dtype), x({0, 3}, dtype), d_weight({2, 3}, dtype, 5),
        panels({12}, DType::fp32);
    host_kernels().linear_backward_weight(d_y, x, {.accumulate = true}, d_weight, panels);
    CHECK(d_weight == Tensor({2, 3}, dtype, 5));
    host_kernels().linear_backward_weight(d_y, x, {}, d_weight, panels);
    CHECK(d_weight == Tensor({2, 3}, dtype, 0.0));
  }
}

TEST_CASE(
    "inf and NaN of an operand reach the result, and of a result that is overwritten do not") {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  for (const DType dtype : kStorage) {
    Tensor panels({12}, DType::fp32);
    Tensor x({2, 2}, dtype, 1), w({2, 2}, dtype, 1), y({2, 2}, dtype, nan);
    host_kernels().linear_forward(x, w, {}, {}, y, panels);
    CHECK(y == Tensor({2, 2}, dtype, 2));
    x.set(3, std::numeric_limits<double>::infinity());
    host_kernels().linear_forward(x, w, {}, {}, y, panels);
    CHECK(y.at(1) == 2);
    CHECK(std::isinf(y.at(2)));
    w.set(0, nan);
    host_kernels().linear_forward(x, w, {}, {}, y, panels);
    CHECK(std::isnan(y.at(0)));
  }
}

TEST_CASE("shapes that do not match, and 16-bit operands without panels, are errors") {
  const Tensor x({2, 3}, DType::fp32), w({4, 3}, DType::fp32), bias({3}, DType::fp32);
  Tensor y({2, 5}, DType::fp32), z({2, 4}, DType::bf16);
  CHECK_THROWS_AS(host_kernels().linear_forward(x, w, {}, {}, y, {}), Error);
  CHECK_THROWS_AS(host_kernels().linear_forward(x, w, bias, {}, z, {}), Error);
  CHECK_THROWS_AS(host_kernels().linear_forward(x, w, {}, {}, z, {}), Error);
}

}  // namespace plimsoll::kernels::test
