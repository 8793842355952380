// A mixture's routing, GEMMs and gate, against sums written out in fp64.
#include <doctest/doctest.h>

#include <cmath>

#include "tests/kernels/operands.h"

namespace plimsoll::kernels::test {

namespace {

const KernelTable& k = host_kernels();

// Four tokens, three experts, two of them a token.
constexpr std::int64_t kTokens = 4, kExperts = 3, kActive = 2, kRows = kTokens * kActive;

struct Routed {
  Tensor all{Extents{routes_elements(kExperts, kRows)}, DType::int32}, scores{{kRows}, DType::fp32};
  Routes routes() { return routes_in(all, kExperts, kActive); }
  std::int64_t offset(std::int64_t e) const { return static_cast<std::int64_t>(all.at(e)); }
  std::int64_t chosen(std::int64_t p) const { return at(0, p); }
  std::int64_t pair(std::int64_t row) const { return at(1, row); }
  std::int64_t place(std::int64_t p) const { return at(2, p); }

 private:
  std::int64_t at(std::int64_t which, std::int64_t i) const {
    return static_cast<std::int64_t>(all.at(kExperts + 1 + which * kRows + i));
  }
};

// Expert 1 is the first choice of tokens 0 and 2, nobody's of token 3; equal logits go in order.
Tensor logits() {
  return Tensor({kTokens, kExperts}, DType::fp32, {0, 2, 1, 3, 1, 3, -1, 0.5, -2, 1, -4, 1});
}

Routed routed(bool normalizes) {
  Routed r;
  k.route(logits(), normalizes, r.routes(), r.scores);
  return r;
}

}  // namespace

TEST_CASE("tokens go to their k largest logits, and rows are sorted by expert") {
  for (const bool normalizes : {false, true}) {
    Routed r = routed(normalizes);
    const std::vector<std::int64_t> expected{1, 2, 0, 2, 1, 0, 0, 2};
    for (std::int64_t p = 0; p < kRows; ++p) {
      CHECK(r.chosen(p) == expected[static_cast<std::size_t>(p)]);
      CHECK(r.pair(r.place(p)) == p);
    }
    CHECK(r.offset(0) == 0);
    CHECK(r.offset(1) == 3);
    CHECK(r.offset(2) == 5);
    CHECK(r.offset(3) == 8);
    for (std::int64_t e = 0; e < kExperts; ++e)
      for (std::int64_t row = r.offset(e); row < r.offset(e + 1); ++row) {
        CHECK(r.chosen(r.pair(row)) == e);
        if (row > r.offset(e)) CHECK(r.pair(row) > r.pair(row - 1));
      }
    for (std::int64_t t = 0; t < kTokens; ++t) {
      double sum = 0, exponentials = 0;
      for (std::int64_t e = 0; e < kExperts; ++e) exponentials += std::exp(logits().at(3 * t + e));
      for (std::int64_t p = 2 * t; p < 2 * t + 2; ++p) {
        sum += r.scores.at(p);
        if (!normalizes)
          CHECK(std::abs(r.scores.at(p) -
                         std::exp(logits().at(3 * t + r.chosen(p))) / exponentials) < 1e-6);
      }
      if (normalizes) CHECK(std::abs(sum - 1) < 1e-6);
    }
  }
}

TEST_CASE("the gradient of logits is the slope of the scores") {
  for (const bool normalizes : {false, true}) {
    Routed r = routed(normalizes);
    const Tensor d_scores = drawn({kRows}, DType::fp32, 3);
    Tensor d_logits({kTokens, kExperts}, DType::fp32, 7);
    k.route_backward(normalizes ? ConstTensorView{} : ConstTensorView(logits()), normalizes,
                     r.routes(), r.scores, d_scores, d_logits);
    // Token 1's equal logits would change places: its slopes are those of the others' neighbours.
    for (const std::int64_t i : {0, 1, 2, 6, 7, 8}) {
      const auto at = [&](double by) {
        Tensor moved = logits();
        moved.set(i, moved.at(i) + by);
        Routed there;
        k.route(moved, normalizes, there.routes(), there.scores);
        double sum = 0;
        for (std::int64_t p = 0; p < kRows; ++p) sum += d_scores.at(p) * there.scores.at(p);
        return sum;
      };
      CHECK(std::abs((at(1e-2) - at(-1e-2)) / 2e-2 - d_logits.at(i)) < 1e-4);
    }
  }
}

TEST_CASE("each row meets its expert's matrix, forward and backward") {
  constexpr std::int64_t in = 20, out = 33;
  for (const DType dtype : {DType::fp32, DType::bf16}) {
    Routed r = routed(true);
    const Tensor x = drawn({kTokens, in}, dtype, 1), weight = drawn({kExperts, out, in}, dtype, 2);
    const Tensor d_y = drawn({kRows, out}, dtype, 3);
    Tensor y({kRows, out}, dtype), d_x({kRows, in}, dtype), panels({3 * 17 * 17}, DType::fp32);
    Tensor d_weight({kExperts, out, in}, dtype, 1), sum({kTokens, in}, dtype, 1);
    k.experts_forward(r.routes(), {x, true}, weight, y, panels);
    k.experts_backward_input(r.routes(), {d_y}, weight, d_x, panels);
    k.experts_backward_weight(r.routes(), {d_y}, {x, true}, d_weight, panels);
    k.experts_sum(r.routes(), d_x, true, sum);
    std::vector<double> y_is(kRows * out), d_x_is(kRows * in), d_weight_is(kExperts * out * in, 1),
        sum_is(kTokens * in, 1);
    for (std::int64_t row = 0; row < kRows; ++row) {
      const std::int64_t e = r.chosen(r.pair(row)), t = r.pair(row) / kActive;
      for (std::int64_t o = 0; o < out; ++o)
        for (std::int64_t i = 0; i < in; ++i) {
          const auto at = static_cast<std::size_t>((e * out + o) * in + i);
          const double w = weight.at((e * out + o) * in + i), d = d_y.at(row * out + o);
          y_is[static_cast<std::size_t>(row * out + o)] += w * x.at(t * in + i);
          d_x_is[static_cast<std::size_t>(row * in + i)] += w * d;
          d_weight_is[at] += d * x.at(t * in + i);
        }
      for (std::int64_t i = 0; i < in; ++i)
        sum_is[static_cast<std::size_t>(t * in + i)] += d_x.at(row * in + i);
    }
    CHECK(deviation(y.values(), y_is) < once(dtype));
    CHECK(deviation(d_x.values(), d_x_is) < once(dtype));
    CHECK(deviation(d_weight.values(), d_weight_is) < once(dtype));
    CHECK(deviation(sum.values(), sum_is) < once(dtype));
  }
}

TEST_CASE("a scored gate is score · silu(gate) · up, and its backward the slopes of that") {
  constexpr std::int64_t width = 5;
  Routed r = routed(false);
  const Tensor both = drawn({kRows, 2 * width}, DType::fp32, 1);
  const Tensor d = drawn({kRows, width}, DType::fp32, 2);
  Tensor p({kRows, width}, DType::fp32);
  k.scored_gate_forward(Activation::silu, r.routes(), both, r.scores, p);
  Tensor d_both = both, d_p = d, d_scores({kRows}, DType::fp32);
  k.scored_gate_backward(Activation::silu, r.routes(), d_both, r.scores, d_p, d_scores);
  CHECK(deviation(d_p.values(), p.values()) < 1e-6);
  for (std::int64_t row = 0; row < kRows; ++row) {
    const double score = r.scores.at(r.pair(row));
    double of_score = 0;
    for (std::int64_t i = 0; i < width; ++i) {
      const double g = both.at(row * 2 * width + i), u = both.at((row * 2 + 1) * width + i);
      const double s = 1 / (1 + std::exp(-g)), d_i = d.at(row * width + i);
      CHECK(std::abs(p.at(row * width + i) - score * g * s * u) < 1e-6);
      CHECK(std::abs(d_both.at(row * 2 * width + i) - score * d_i * u * (s + g * s * (1 - s))) <
            1e-6);
      CHECK(std::abs(d_both.at((row * 2 + 1) * width + i) - score * d_i * g * s) < 1e-6);
      of_score += d_i * g * s * u;
    }
    CHECK(std::abs(d_scores.at(r.pair(row)) - of_score) < 1e-6);
  }
}

}  // namespace plimsoll::kernels::test
