// Activations, rotation, and sums into the residual stream.
#include <cmath>
#include <limits>

#include "tests/kernels/operands.h"
#include "tests/near.h"

namespace plimsoll::kernels::test {

namespace {

const KernelTable& k = host_kernels();

Activation kind_of(const std::string& name) {
  return name == "gelu_tanh"  ? Activation::gelu_tanh
         : name == "gelu_erf" ? Activation::gelu_erf
                              : Activation::relu;
}

}  // namespace

TEST_CASE("activations are PyTorch's; backward leaves the gradients and the product again") {
  for_goldens("activations", [](const Json& c, DType dtype) {
    if (c["arguments"]["kind"] == "swiglu") {
      Tensor gate = input(c, "gate", dtype), up = input(c, "up", dtype),
             d_p = input(c, "d_p", dtype), p(gate.shape, dtype);
      k.gated_forward(Activation::silu, gate, up, p);
      CHECK_NEAR(p, c["out"]["p"], once(dtype));
      Tensor in_place = gate;
      k.gated_forward(Activation::silu, in_place, up, in_place);
      CHECK(in_place == p);
      k.gated_backward(Activation::silu, gate, up, d_p);
      CHECK_NEAR(gate, c["out"]["d_gate"], once(dtype));
      CHECK_NEAR(up, c["out"]["d_up"], once(dtype));
      CHECK(d_p == p);
      return;
    }
    const Activation kind = kind_of(c["arguments"]["kind"]);
    Tensor x = input(c, "x", dtype), d_p = input(c, "d_p", dtype), p(x.shape, dtype);
    k.activation_forward(kind, x, p);
    CHECK_NEAR(p, c["out"]["p"], once(dtype));
    Tensor in_place = x;
    k.activation_forward(kind, in_place, in_place);
    CHECK(in_place == p);
    k.activation_backward(kind, x, d_p);
    CHECK_NEAR(x, c["out"]["d_x"], once(dtype));
    CHECK(d_p == p);
  });
}

TEST_CASE("a gate of 1s is the activation alone") {
  for (const DType dtype : kStorage) {
    const Tensor x = drawn({300}, dtype, 1), ones({300}, dtype, 1);
    for (const Activation kind : {Activation::gelu_tanh, Activation::relu, Activation::silu}) {
      Tensor gated(x.shape, dtype), alone(x.shape, dtype);
      k.gated_forward(kind, x, ones, gated);
      k.activation_forward(kind, x, alone);
      CHECK(gated == alone);
    }
  }
}

TEST_CASE("gradients of activations are the slopes of their forwards") {
  const Tensor x({9}, DType::fp32, {-3, -1.5, -0.7, -0.1, 0.2, 0.5, 1, 2, 3.5}),
      up = drawn({9}, DType::fp32, 1), d = drawn({9}, DType::fp32, 2);
  for (const Activation kind : {Activation::gelu_tanh, Activation::gelu_erf, Activation::relu}) {
    Tensor d_x = x, d_p = d;
    k.activation_backward(kind, d_x, d_p);
    const auto forward = [&](const Tensor& at) {
      Tensor p(at.shape, DType::fp32);
      k.activation_forward(kind, at, p);
      return p;
    };
    CHECK(deviation(d_x.values(), slopes(x, d, forward)) < 1e-3);
  }
  for (const Activation kind : {Activation::silu, Activation::gelu_tanh}) {
    Tensor d_gate = x, d_up = up, d_p = d;
    k.gated_backward(kind, d_gate, d_up, d_p);
    const auto forward = [&](const Tensor& gate, const Tensor& u) {
      Tensor p(gate.shape, DType::fp32);
      k.gated_forward(kind, gate, u, p);
      return p;
    };
    CHECK(deviation(d_gate.values(),
                    slopes(x, d, [&](const Tensor& at) { return forward(at, up); })) < 1e-3);
    CHECK(deviation(d_up.values(),
                    slopes(up, d, [&](const Tensor& at) { return forward(x, at); })) < 1e-3);
  }
}

// Far from 0 the derivatives are exactly 0 or 1: no inf · 0.
TEST_CASE("activations saturate, and let NaN through") {
  const double big = 1e4, nan = std::numeric_limits<double>::quiet_NaN();
  for (const Activation kind : {Activation::gelu_tanh, Activation::gelu_erf, Activation::relu}) {
    Tensor x({3}, DType::fp32, {-big, big, nan}), d_p({3}, DType::fp32, 1);
    k.activation_backward(kind, x, d_p);
    CHECK(x.at(0) == 0);
    CHECK(x.at(1) == 1);
    CHECK(d_p.at(0) == 0);
    CHECK(d_p.at(1) == big);
    CHECK(std::isnan(d_p.at(2)));
  }
  Tensor gate({2}, DType::fp32, {-big, big}), up({2}, DType::fp32, 1), d_p({2}, DType::fp32, 1);
  k.gated_backward(Activation::silu, gate, up, d_p);
  CHECK(gate.values() == std::vector<double>{0, 1});
  CHECK(up.values() == std::vector<double>{0, big});
}

// 8191 · frequency is rounded to fp32 as Transformers does; cos and sin differ in their last bit.
TEST_CASE("rotary tables are Transformers', Llama 3's scaling included") {
  for (const Json& c : goldens("rotary")) {
    const Json& a = c["arguments"];
    const std::int64_t half = a["head_dim"].get<std::int64_t>() / 2;
    const std::vector<double> at = golden_values(c["in"]["at"]);
    Tensor table({2, 8192, half}, DType::fp32);
    k.rotary_table({.theta = a["theta"], .factor = a["factor"]}, table);
    const Tensor cosines = golden(c["out"]["cosines"], DType::fp32),
                 sines = golden(c["out"]["sines"], DType::fp32);
    Tensor ours(cosines.shape, DType::fp32), our_sines(cosines.shape, DType::fp32);
    for (std::size_t t = 0; t < at.size(); ++t)
      for (std::int64_t i = 0; i < half; ++i) {
        const auto row = static_cast<std::int64_t>(at[t]);
        ours.set(static_cast<std::int64_t>(t) * half + i, table.at(row * half + i));
        our_sines.set(static_cast<std::int64_t>(t) * half + i, table.at((8192 + row) * half + i));
      }
    CHECK_NEAR(ours, c["out"]["cosines"], 1e-6);
    CHECK_NEAR(our_sines, c["out"]["sines"], 1e-6);
  }
}

TEST_CASE("heads are turned as Transformers turns them, and turned back") {
  for_goldens("rotary", [](const Json& c, DType dtype) {
    const std::int64_t half = c["arguments"]["head_dim"].get<std::int64_t>() / 2;
    const Tensor cosines = golden(c["out"]["cosines"], DType::fp32),
                 sines = golden(c["out"]["sines"], DType::fp32);
    const std::int64_t rows = cosines.shape[0];
    Tensor table({2, rows, half}, DType::fp32);  // the golden's positions, one after another
    for (std::int64_t i = 0; i < rows * half; ++i) {
      table.set(i, cosines.at(i));
      table.set(rows * half + i, sines.at(i));
    }
    Tensor x = input(c, "x", dtype);
    k.rotary(table, false, x);
    CHECK_NEAR(x, c["out"]["turned"], once(dtype));
    k.rotary(table, true, x);
    CHECK_NEAR(x, c["in"]["x"], 2 * once(dtype));
  });
}

TEST_CASE("tables and rows of other shapes are refused") {
  Tensor table({2, 4, 2}, DType::fp32), x({4, 8}, DType::fp32);
  k.rotary(table, false, x);  // two heads of 4
  for (const Extents& shape : {Extents{3, 4, 2}, Extents{2, 8}}) {
    Tensor other(shape, DType::fp32);
    CHECK_THROWS_WITH_AS(k.rotary_table({}, other), doctest::Contains("it is [2, length, d / 2]"),
                         Error);
    CHECK_THROWS_WITH_AS(k.rotary(other, false, x),
                         doctest::Contains("the table is [2, length, d / 2]"), Error);
  }
  Tensor wide({2, 4, 257}, DType::fp32), heads({1, 514}, DType::fp32);  // a head of 514
  CHECK_THROWS_WITH_AS(k.rotary(wide, false, heads), doctest::Contains("with d <= 512"), Error);
  Tensor odd({4, 6}, DType::fp32);  // a head and a half
  CHECK_THROWS_WITH_AS(k.rotary(table, false, odd), doctest::Contains("x holds whole heads"),
                       Error);
  CHECK_THROWS_WITH_AS(k.rotary(table, false, Columns(x, 6, 4)),
                       doctest::Contains("x holds whole heads"), Error);
}

// Two tokens of [q | k | v] with heads of 2; position 1 turns by 1 radian. Only the middle turns.
TEST_CASE("rotation reaches its columns only, and starts anew with each sequence") {
  Tensor table({2, 2, 1}, DType::fp32), x({4, 6}, DType::fp32, 1);
  k.rotary_table({}, table);
  k.rotary(table, false, Columns(x, 2, 2));
  for (std::int64_t t = 0; t < 4; ++t) {
    const double turned[2] = {std::cos(t % 2) - std::sin(t % 2), std::cos(t % 2) + std::sin(t % 2)};
    for (std::int64_t i = 0; i < 6; ++i)
      CHECK(tests::near(x.at(t * 6 + i), i / 2 == 1 ? turned[i % 2] : 1, 1e-6));
  }
}

TEST_CASE("the residual sum is rounded once, and drops what it adds but not the stream") {
  Tensor y({2}, DType::bf16, {256, 256});
  k.residual_add(Tensor({2}, DType::bf16, {1, 1.5}), {}, y);  // see `add`
  CHECK(y.values() == std::vector<double>{256, 258});
  const Dropout all{.rate = 1};
  k.residual_add(Tensor({2}, DType::bf16, {3, 4}), all, y);
  CHECK(y.values() == std::vector<double>{3, 4});
}

}  // namespace plimsoll::kernels::test
