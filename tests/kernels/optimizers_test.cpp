#include <cmath>
#include <limits>

#include "tests/kernels/operands.h"
#include "tests/near.h"

namespace plimsoll::kernels::test {

namespace {

const KernelTable& k = host_kernels();

// As the goldens were made.
constexpr AdamW kAdamW{.learning_rate = 0.01f,
                       .beta1 = 0.9f,
                       .beta2 = 0.95f,
                       .eps = 1e-8f,
                       .weight_decay = 0.1f,
                       .step = 1};

struct State {
  Tensor weight, master, first, second;
};

// All steps of a golden.
void train(const Json& c, bool adamw, float momentum, State& s, RandomKey key = {}) {
  const Tensor all = input(c, "gradients", DType::fp32);
  for (std::int64_t step = 0; step < all.shape[0]; ++step) {
    key.step = static_cast<std::uint32_t>(step);
    const OptimizerTensors t{.weight = s.weight,
                             .master = s.master,
                             .first_moment = s.first,
                             .second_moment = s.second,
                             .gradient = ConstTensorView(all).rows(step, 1),
                             .factor = {},
                             .overflow = {},
                             .first_element = 0,
                             .key = key};
    AdamW options = kAdamW;
    options.step = step + 1;
    if (adamw)
      k.adamw(t, options);
    else
      k.sgd(t, {.learning_rate = 0.01f, .momentum = momentum, .weight_decay = 0.1f});
  }
}
const Json& of_kind(const Json& cases, const std::string& kind) {
  for (const Json& c : cases)
    if (c["arguments"]["kind"] == kind) return c;
  FAIL("no golden of " << kind);
  return cases;
}

}  // namespace

TEST_CASE("ten steps of AdamW, SGD and momentum are PyTorch's in fp32") {
  const Json cases = goldens("optimizers");
  for (const std::string kind : {"adamw", "sgd", "momentum"}) {
    CAPTURE(kind);
    const Json& c = of_kind(cases, kind);
    State s{input(c, "weight", DType::fp32), {}, {}, {}};
    const Extents n = s.weight.shape;
    if (kind != "sgd") s.first = Tensor(n, DType::fp32);
    if (kind == "adamw") s.second = Tensor(n, DType::fp32);
    train(c, kind == "adamw", kind == "momentum" ? 0.9f : 0, s);
    CHECK_NEAR(s.weight, c["out"]["weight"], 1e-6);
  }
}

// lr 0.5, betas 0.75 and 0.5 (exact in binary), no decay.
//   g = 4:  c = 0.25 · 4 = 1, w = 1 - 0.5 = 0.5;           m = 0.5 · 4 = 2
//   g = -4: c = 0.75 · 2 - 0.25 · 4 = 0.5 > 0, w = 0: the memory outvotes the gradient; m = 1 - 2 =
//   -1 g = 3:  c = -0.75 + 0.75 = 0: w stays;                 m = -0.5 + 1.5 = 1 g = -8: c = 0.75 -
//   2 < 0, w = 0.5;                     m = 0.5 - 4 = -3.5
TEST_CASE("Lion steps by the sign of an average that is not its moment") {
  State s{Tensor({1}, DType::fp32, 1), {}, Tensor({1}, DType::fp32), {}};
  const Lion options{.learning_rate = 0.5f, .beta1 = 0.75f, .beta2 = 0.5f};
  const double steps[][3] = {{4, 0.5, 2}, {-4, 0, -1}, {3, 0, 1}, {-8, 0.5, -3.5}};
  for (const auto& [gradient, weight, moment] : steps) {
    const Tensor g({1}, DType::fp32, gradient);
    k.lion({.weight = s.weight, .first_moment = s.first, .gradient = g}, options);
    CHECK(s.weight.at(0) == weight);
    CHECK(s.first.at(0) == moment);
  }
  // The decay is of the weight, not of the gradient: 0.5 · (1 - 0.5 · 0.5) = 0.375; c < 0: + 0.5.
  const Tensor g({1}, DType::fp32, 0);
  Lion decayed = options;
  decayed.weight_decay = 0.5f;
  k.lion({.weight = s.weight, .first_moment = s.first, .gradient = g}, decayed);
  CHECK(s.weight.at(0) == 0.875);
}

TEST_CASE("with a master the weight is its rounding, and the master is as good as fp32") {
  const Json cases = goldens("optimizers");
  const Json& c = of_kind(cases, "adamw");
  for (const DType dtype : {DType::bf16, DType::fp16}) {
    State s{input(c, "weight", dtype), input(c, "weight", DType::fp32), Tensor({37}, DType::fp32),
            Tensor({37}, DType::fp32)};
    train(c, true, 0, s);
    CHECK_NEAR(s.master, c["out"]["weight"], 1e-6);
    Tensor rounded({37}, dtype);
    k.cast(s.master, rounded);
    CHECK(s.weight == rounded);
  }
}

TEST_CASE("pure bf16 and 16 bits without masters follow PyTorch's fp32 within 16 bits") {
  const Json cases = goldens("optimizers");
  const Json& c = of_kind(cases, "adamw");
  for (const DType dtype : {DType::bf16, DType::fp16})
    for (const DType moments : {dtype, DType::fp32}) {
      State s{input(c, "weight", dtype), {}, Tensor({37}, moments), Tensor({37}, moments)};
      train(c, true, 0, s, {.seed = 11, .step = 0, .stream = 1});
      CHECK_NEAR(s.weight, c["out"]["weight"], 2e-2);
    }
}

// The fp32 twin of the same step says what is rounded; word and block say how.
TEST_CASE("words 0, 1 and 2 of an element's block round weight, first and second moment") {
  State exact{drawn({600}, DType::fp32, 1),
              {},
              drawn({600}, DType::fp32, 2),
              Tensor({600}, DType::fp32, 0.5)};
  State rounded{drawn({600}, DType::bf16, 1),
                {},
                drawn({600}, DType::bf16, 2),
                Tensor({600}, DType::bf16, 0.5)};
  const Tensor g = drawn({600}, DType::fp32, 3);
  const RandomKey key{.seed = 1ull << 40, .step = 2, .stream = 3};
  for (State* s : {&exact, &rounded})
    k.adamw({.weight = s->weight,
             .master = {},
             .first_moment = s->first,
             .second_moment = s->second,
             .gradient = g,
             .factor = {},
             .overflow = {},
             .first_element = 1ull << 33,
             .key = key},
            kAdamW);
  const std::array<std::pair<const Tensor*, const Tensor*>, 3> pairs{{
      {&exact.weight, &rounded.weight},
      {&exact.first, &rounded.first},
      {&exact.second, &rounded.second},
  }};
  for (std::size_t word = 0; word < 3; ++word)
    for (std::int64_t i = 0; i < 600; ++i) {
      const Philox random = random_block(key, (1ull << 33) + static_cast<std::uint64_t>(i));
      const Bf16 expected = stochastically_narrowed(
          Bf16{}, static_cast<float>(pairs[word].first->at(i)), random[word]);
      REQUIRE(pairs[word].second->at(i) == widened(expected));
    }
}

// lr 2^-12 and gradient 1 move a weight 1 by 2^-12 a step: to nearest, bf16 would stay at 1 for
// ever (half its spacing below 1 is 2^-9). After 1024 steps it should be at 0.75; each of 1000
// weights walks in steps of at most 2^-8, so that their mean is within 0.01.
TEST_CASE("without masters small updates arrive in the mean") {
  Tensor w({1000}, DType::bf16, 1);
  const Tensor g({1000}, DType::bf16, 1);
  for (std::uint32_t step = 0; step < 1024; ++step) {
    OptimizerTensors t{.weight = w,
                       .master = {},
                       .first_moment = {},
                       .second_moment = {},
                       .gradient = g,
                       .factor = {},
                       .overflow = {},
                       .first_element = 0,
                       .key = {3, step, 1}};
    k.sgd(t, {.learning_rate = 0x1p-12f});
  }
  double mean = 0;
  for (const double v : w.values()) mean += v / 1000;
  CHECK(tests::near(mean, 0.75, 0.01));
}

TEST_CASE("a step of pieces is the step of the whole, bit for bit") {
  for (const DType dtype : kStorage) {
    State whole{drawn({1100}, dtype, 1), {}, drawn({1100}, dtype, 2), Tensor({1100}, dtype, 0.5)};
    State cut = whole;
    const Tensor g = drawn({1100}, dtype, 3);
    const auto step = [&](State& s, std::int64_t first, std::int64_t n) {
      const auto piece = [&](Tensor& t) { return TensorView(t).rows(first, n); };
      k.adamw({.weight = piece(s.weight),
               .master = {},
               .first_moment = piece(s.first),
               .second_moment = piece(s.second),
               .gradient = ConstTensorView(g).rows(first, n),
               .factor = {},
               .overflow = {},
               .first_element = 5000 + static_cast<std::uint64_t>(first),
               .key = {1, 2, 3}},
              kAdamW);
    };
    step(whole, 0, 1100);
    step(cut, 0, 8);
    step(cut, 8, 700);
    step(cut, 708, 392);
    CHECK(whole.weight == cut.weight);
    CHECK(whole.first == cut.first);
    CHECK(whole.second == cut.second);
  }
}

// SGD, lr 1: w = 4 - 0.5 · 2.
TEST_CASE("a gradient counts times the factor, and on overflow nothing changes") {
  Tensor w({1}, DType::fp32, 4), factor({1}, DType::fp32, 0.5), overflow({1}, DType::int32, 0.0);
  const Tensor g({1}, DType::fp32, 2);
  const OptimizerTensors t{.weight = w,
                           .master = {},
                           .first_moment = {},
                           .second_moment = {},
                           .gradient = g,
                           .factor = factor,
                           .overflow = overflow,
                           .first_element = 0,
                           .key = {}};
  k.sgd(t, {.learning_rate = 1});
  CHECK(w.at(0) == 3);
  overflow.set(0, 1);
  k.sgd(t, {.learning_rate = 1});
  CHECK(w.at(0) == 3);
}

// Gradient norm
// ------------------------------------------------------------------------------------

TEST_CASE("norm and clipping are PyTorch's") {
  for (const Json& c : goldens("optimizers")) {
    if (c["arguments"]["kind"] != "clip") continue;
    for (const float loss_scale : {1.0f, 1024.0f}) {
      Tensor g = input(c, "gradient", DType::fp32), sums({4}, DType::fp64),
             squares({1}, DType::fp64), norm({1}, DType::fp32), factor({1}, DType::fp32),
             overflow({1}, DType::int32, 7);
      k.scale(loss_scale, g);
      add_squares(k, g, 0, 10, sums);
      k.total(sums, all_of(sums), squares);
      k.clip(squares, c["arguments"]["max_norm"], loss_scale, norm, factor, overflow);
      CHECK_NEAR(norm, c["out"]["norm"], 1e-6);
      CHECK(overflow.at(0) == 0);
      k.scale(static_cast<float>(factor.at(0)), g);
      CHECK_NEAR(g, c["out"]["clipped"], 1e-6);
    }
  }
}

TEST_CASE("sums of squares do not depend on how a tensor is cut into pieces") {
  for (const DType dtype : kStorage) {
    Tensor g({3000}, dtype);
    for (std::int64_t i = 0; i < 3000; ++i) g.set(i, std::sin(static_cast<double>(i)));
    Tensor whole({3}, DType::fp64), cut({3}, DType::fp64);
    add_squares(k, g, 0, 1024, whole);
    for (const auto& [first, n] : {std::pair{0, 4}, {4, 1500}, {1504, 1000}, {2504, 496}})
      add_squares(k, ConstTensorView(g).rows(first, n), first, 1024, cut);
    CHECK(whole == cut);
    CHECK(whole.at(0) > 400);
  }
}

// Tensors of 1 … 300 elements in chunks of 7, and totals of none, one and several sums.
TEST_CASE("many pieces in one call are the pieces one by one") {
  const std::int64_t lengths[] = {1, 7, 8, 300, 64};
  std::vector<Tensor> gradients;
  std::vector<std::int64_t> ends;
  std::int64_t sums = 0;
  for (const std::int64_t n : lengths) {
    gradients.push_back(drawn({n}, DType::bf16, static_cast<std::uint64_t>(n)));
    ends.push_back(sums += (n + 6) / 7);
  }
  ends.insert(ends.begin() + 1, ends[0]);
  Tensor together({sums}, DType::fp64), alone({sums}, DType::fp64), totals({6}, DType::fp64);
  std::vector<SquaredPiece> pieces;
  std::int64_t at = 0;
  for (std::size_t i = 0; i < gradients.size(); ++i) {
    const std::int64_t n = (lengths[i] + 6) / 7;
    pieces.push_back({gradients[i], 0, TensorView(together).rows(at, n)});
    add_squares(k, gradients[i], 0, 7, TensorView(alone).rows(at, n));
    at += n;
  }
  k.sum_of_squares(pieces, 7);
  CHECK(together == alone);
  k.total(together, ends, totals);
  CHECK(totals.at(1) == 0);
  double all = 0;
  for (const double v : gradients[3].values()) all += v * v;  // exact: multiples of 2^-12
  CHECK(totals.at(4) == all);
  ends[2] = ends[0] - 1;
  CHECK_THROWS_AS(k.total(together, ends, totals), Error);
}

// 1e30² is beyond fp32, not beyond fp64; 2^-80² = 2^-160 below it.
TEST_CASE("squares neither overflow nor vanish") {
  const Tensor g({2}, DType::fp32, {1e30, 0}), small({4}, DType::fp32, 0x1p-80);
  Tensor sums({1}, DType::fp64), squares({1}, DType::fp64), norm({1}, DType::fp32),
      factor({1}, DType::fp32), overflow({1}, DType::int32);
  add_squares(k, g, 0, 8, sums);
  k.total(sums, all_of(sums), squares);
  k.clip(squares, 0, 1, norm, factor, overflow);
  CHECK(tests::near(norm.at(0), 1e30, 1e-5));
  CHECK(overflow.at(0) == 0);
  CHECK(factor.at(0) == 1);
  sums.set(0, 0);
  add_squares(k, small, 0, 8, sums);
  CHECK(sums.at(0) == 4 * 0x1p-160);
}

// As torch's clip_grad_norm_: bound / (norm + 1e-6). A norm of 1e-6 is halved by a bound of 1e-6,
// and one of 3e-6 is divided by 4; a norm of 0 is left alone, being below its bound.
TEST_CASE("clipping adds 1e-6 to the norm, which small gradients feel") {
  const auto factor = [](double squares, float bound) {
    Tensor norm({1}, DType::fp32), made({1}, DType::fp32), overflow({1}, DType::int32);
    k.clip(Tensor({1}, DType::fp64, squares), bound, 1, norm, made, overflow);
    return made.at(0);
  };
  CHECK(tests::near(factor(1e-12, 1e-6f), 0.5, 1e-6));
  CHECK(tests::near(factor(9e-12, 1e-6f), 0.25, 1e-6));
  CHECK(factor(0, 1e-6f) == 1);
  CHECK(factor(0, 0.5e-6f) == 0.5);
}

TEST_CASE("one inf or NaN anywhere is an overflow, and the factor is 0") {
  for (const double bad :
       {std::numeric_limits<double>::infinity(), -std::numeric_limits<double>::infinity(),
        std::numeric_limits<double>::quiet_NaN()})
    for (const DType dtype : kStorage) {
      Tensor g({2000}, dtype, 1), sums({2}, DType::fp64), squares({1}, DType::fp64),
          norm({1}, DType::fp32), factor({1}, DType::fp32, 7), overflow({1}, DType::int32);
      g.set(1999, bad);
      add_squares(k, g, 0, 1024, sums);
      CHECK(sums.at(0) == 1024);
      k.total(sums, all_of(sums), squares);
      k.clip(squares, 1, 65536, norm, factor, overflow);
      CHECK(overflow.at(0) == 1);
      CHECK(factor.at(0) == 0);
    }
}

TEST_CASE("moments that are missing, and counts that differ, are errors") {
  Tensor w({4}, DType::fp32), g({3}, DType::fp32), same({4}, DType::fp32);
  CHECK_THROWS_AS(k.sgd({.weight = w, .gradient = g}, {}), Error);
  CHECK_THROWS_AS(k.sgd({.weight = w, .gradient = same}, {.momentum = 0.9f}), Error);
  CHECK_THROWS_AS(k.adamw({.weight = w, .gradient = same}, {}), Error);
  CHECK_THROWS_AS(k.lion({.weight = w, .gradient = same}, {}), Error);
  CHECK_THROWS_AS(add_squares(k, same, 0, 2, Tensor({1}, DType::fp64)), Error);
}

}  // namespace plimsoll::kernels::test
