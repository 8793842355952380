#include <cmath>
#include <limits>

#include "tests/kernels/operands.h"
#include "tests/near.h"

namespace plimsoll::kernels::test {

namespace {

const KernelTable& k = host_kernels();

struct Run {
  Tensor y, statistics, d_x, d_weight, d_bias;
};

// Gradients of parameters start from 0; d_x from `d_x`.
Run run(bool layer_norm, const Tensor& x, const Tensor& weight, const Tensor& bias,
        const Tensor& d_y, float eps, std::int64_t partials, bool accumulate = false,
        double d_x = 0) {
  const std::int64_t rows = x.shape[0], width = weight.elements();
  Run r{Tensor(x.shape, x.dtype), Tensor({rows, layer_norm ? 2 : 1}, DType::fp32),
        Tensor(x.shape, x.dtype, d_x), Tensor(weight.shape, weight.dtype),
        Tensor(weight.shape, weight.dtype)};
  if (layer_norm) {
    Tensor partial({2, partials, width}, DType::fp32, 9);
    k.layer_norm_forward(x, weight, bias, eps, r.y, r.statistics);
    k.layer_norm_backward(x, r.statistics, weight, d_y, accumulate, r.d_x, r.d_weight, r.d_bias,
                          partial);
  } else {
    Tensor partial({partials, width}, DType::fp32, 9);
    k.rms_norm_forward(x, weight, 0, eps, r.y, r.statistics);
    k.rms_norm_backward(x, r.statistics, weight, 0, d_y, accumulate, r.d_x, r.d_weight, partial);
  }
  return r;
}

}  // namespace

TEST_CASE("norms and their gradients are PyTorch's") {
  for_goldens("norms", [](const Json& c, DType dtype) {
    const bool layer_norm = c["arguments"]["kind"] == "layer_norm";
    const Run r = run(layer_norm, input(c, "x", dtype), input(c, "weight", dtype),
                      input(c, "bias", dtype), input(c, "d_y", dtype), c["arguments"]["eps"], 128);
    CHECK_NEAR(r.y, c["out"]["y"], once(dtype));
    if (layer_norm) CHECK_NEAR(r.d_bias, c["out"]["d_bias"], once(dtype));
    // A row of one value is its own mean and root mean square: what remains of the gradients are
    // differences of equal numbers, of which PyTorch's fp64 has other remains.
    if (r.d_weight.elements() == 1) {
      if (layer_norm) CHECK(r.d_weight.at(0) == 0);
      for (const double d : r.d_x.values()) CHECK(std::abs(d) < 1e-4);
      return;
    }
    CHECK_NEAR(r.d_weight, c["out"]["d_weight"], once(dtype));
    CHECK_NEAR(r.d_x, c["out"]["d_x"], once(dtype));
  });
}

TEST_CASE("a norm is made again from its statistics bit for bit") {
  for (const DType dtype : kStorage) {
    const Tensor x = drawn({5, 700}, dtype, 1), weight = drawn({700}, dtype, 2),
                 bias = drawn({700}, dtype, 3);
    Tensor y(x.shape, dtype), again(x.shape, dtype), both({5, 2}, DType::fp32),
        one({5}, DType::fp32);
    k.layer_norm_forward(x, weight, bias, 1e-5f, y, both);
    k.layer_norm_again(x, both, weight, bias, again);
    CHECK(y == again);
    k.rms_norm_forward(x, weight, 0, 1e-6f, y, one);
    k.rms_norm_again(x, one, weight, 0, again);
    CHECK(y == again);
  }
}

TEST_CASE("an offset is added to the weight, and is no part of its gradient") {
  const Tensor x = drawn({5, 300}, DType::fp32, 1), weight = drawn({300}, DType::fp32, 2),
               d_y = drawn({5, 300}, DType::fp32, 3);
  Tensor more = weight;
  for (std::int64_t i = 0; i < 300; ++i)
    static_cast<float*>(TensorView(more).data)[i] = 1 + static_cast<float>(weight.at(i));
  struct Results {
    Tensor y{{5, 300}, DType::fp32}, again = y, d_x = y, statistics{{5}, DType::fp32},
                                     d_weight{{300}, DType::fp32}, partial{{4, 300}, DType::fp32};
  };
  const auto run = [&](const Tensor& of, float offset) {
    Results r;
    k.rms_norm_forward(x, of, offset, 1e-6f, r.y, r.statistics);
    k.rms_norm_again(x, r.statistics, of, offset, r.again);
    k.rms_norm_backward(x, r.statistics, of, offset, d_y, false, r.d_x, r.d_weight, r.partial);
    return r;
  };
  const Results a = run(weight, 1), b = run(more, 0);
  CHECK(a.y == b.y);
  CHECK(a.again == a.y);
  CHECK(a.d_x == b.d_x);
  CHECK(a.d_weight == b.d_weight);
}

TEST_CASE("a norm may take its input's place, and its gradient d_y's") {
  for (const DType dtype : kStorage) {
    const Tensor x = drawn({6, 600}, dtype, 1), weight = drawn({600}, dtype, 2),
                 d_y = drawn({6, 600}, dtype, 3);
    Tensor y(x.shape, dtype), statistics({6}, DType::fp32), d_x(x.shape, dtype);
    Tensor in_place = x, none_saved(x.shape, dtype);
    k.rms_norm_forward(x, weight, 0, 1e-6f, y, statistics);
    k.rms_norm_forward(in_place, weight, 0, 1e-6f, in_place, {});
    CHECK(y == in_place);
    k.rms_norm_backward(x, statistics, weight, 0, d_y, false, d_x, {}, {});
    Tensor d = d_y;
    k.rms_norm_backward(x, statistics, weight, 0, d, false, d, {}, {});
    CHECK(d_x == d);
  }
}

// dx of a frozen norm is the same; 0.5 is there before, so d_x - dx = 0.5 in fp32 up to rounding.
TEST_CASE("a norm's gradient is added to the stream's, and to the parameters' as it stands") {
  const Tensor x = drawn({4, 9}, DType::fp32, 1), weight = drawn({9}, DType::fp32, 2),
               d_y = drawn({4, 9}, DType::fp32, 3);
  const Run fresh = run(true, x, weight, weight, d_y, 1e-5f, 2);
  const Run added = run(true, x, weight, weight, d_y, 1e-5f, 2, true, 0.5);
  for (std::int64_t i = 0; i < x.elements(); ++i)
    CHECK(tests::near(added.d_x.at(i) - fresh.d_x.at(i), 0.5, 1e-6));
  Tensor d_weight({9}, DType::fp32, 3), partial({2, 2, 9}, DType::fp32);
  k.layer_norm_backward(x, fresh.statistics, weight, d_y, false, {}, d_weight, {}, partial);
  for (std::int64_t i = 0; i < 9; ++i)
    CHECK(tests::near(d_weight.at(i) - fresh.d_weight.at(i), 3, 1e-6));
}

// fp32 has 24 bits. One sum: 2^24 + 1 = 2^24, - 2^24 = 0, + 1 = 1. Two: rows 0 and 2 give 0, rows 1
// and 3 give 2. The same of d_y · n, where n = 1: x is ±1 in each row and eps 0, the weight's
// gradient takes the column of +1.
TEST_CASE("rows are summed in as many partials as there is scratch for, row r in r mod P") {
  const Tensor x({4, 2}, DType::fp32, {1, -1, 1, -1, 1, -1, 1, -1}), weight({2}, DType::fp32, 1);
  const Tensor d_y({4, 2}, DType::fp32, {0x1p24, 0, 1, 0, -0x1p24, 0, 1, 0});
  for (const std::int64_t partials : {1, 2}) {
    const double expected = partials == 1 ? 1 : 2;
    const Run both = run(true, x, weight, weight, d_y, 0, partials);
    CHECK(both.d_weight.at(0) == expected);
    CHECK(both.d_bias.at(0) == expected);
    CHECK(run(false, x, weight, weight, d_y, 0, partials).d_weight.at(0) == expected);
    Tensor d_bias({2}, DType::fp32), partial({partials, 2}, DType::fp32, 9);
    k.bias_backward(d_y, d_bias, partial);
    CHECK(d_bias.at(0) == expected);
  }
}

TEST_CASE("gradients of norms are the slopes of their forwards") {
  const Tensor x = drawn({3, 7}, DType::fp32, 4), weight = drawn({7}, DType::fp32, 5),
               bias = drawn({7}, DType::fp32, 6), d_y = drawn({3, 7}, DType::fp32, 7);
  for (const bool layer_norm : {true, false}) {
    CAPTURE(layer_norm);
    const Run r = run(layer_norm, x, weight, bias, d_y, 1e-5f, 2);
    const auto y_of = [&](const Tensor& at, const Tensor& w, const Tensor& b) {
      return run(layer_norm, at, w, b, d_y, 1e-5f, 2).y;
    };
    CHECK(deviation(r.d_x.values(), slopes(x, d_y, [&](const Tensor& at) {
                      return y_of(at, weight, bias);
                    })) < 1e-3);
    CHECK(deviation(r.d_weight.values(), slopes(weight, d_y, [&](const Tensor& at) {
                      return y_of(x, at, bias);
                    })) < 1e-4);
    if (layer_norm)
      CHECK(deviation(r.d_bias.values(), slopes(bias, d_y, [&](const Tensor& at) {
                        return y_of(x, weight, at);
                      })) < 1e-4);
  }
}

// Of 0 the variance is 0: y = 0 · 1/sqrt(eps) · weight + bias = bias; and dx is finite.
TEST_CASE("a row of zeros gives the bias, and a finite gradient") {
  for (const DType dtype : kStorage)
    for (const bool layer_norm : {true, false}) {
      const Tensor x({2, 5}, dtype), weight({5}, dtype, 2), bias({5}, dtype, 3),
          d_y = drawn({2, 5}, dtype, 1);
      const Run r = run(layer_norm, x, weight, bias, d_y, 1e-5f, 1);
      CHECK(r.y == Tensor({2, 5}, dtype, layer_norm ? 3 : 0));
      for (const double d : r.d_x.values()) CHECK(std::isfinite(d));
    }
}

TEST_CASE("no rows leave the parameters' gradients as they are") {
  const Tensor x({0, 4}, DType::bf16), weight({4}, DType::bf16, 1);
  Tensor y({0, 4}, DType::bf16), statistics({0}, DType::fp32), d_weight({4}, DType::bf16, 5),
      partial({3, 4}, DType::fp32);
  k.rms_norm_forward(x, weight, 0, 1e-6f, y, statistics);
  k.rms_norm_backward(x, statistics, weight, 0, x, true, y, d_weight, partial);
  CHECK(d_weight == Tensor({4}, DType::bf16, 5));
}

TEST_CASE("NaN stays in its row") {
  Tensor x = drawn({3, 4}, DType::fp32, 1);
  x.set(5, std::numeric_limits<double>::quiet_NaN());
  const Tensor weight({4}, DType::fp32, 1);
  Tensor y(x.shape, DType::fp32);
  k.rms_norm_forward(x, weight, 0, 1e-6f, y, {});
  for (std::int64_t i = 0; i < 12; ++i) CHECK(std::isnan(y.at(i)) == (i / 4 == 1));
}

TEST_CASE("a norm of the wrong width is an error") {
  Tensor x({2, 5}, DType::fp32), weight({4}, DType::fp32), y({2, 5}, DType::fp32);
  CHECK_THROWS_AS(k.rms_norm_forward(x, weight, 0, 1e-6f, y, {}), Error);
}

}  // namespace plimsoll::kernels::test
