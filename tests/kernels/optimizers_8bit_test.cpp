// Moments in 8 bits, against bitsandbytes (tools/oracle/bitsandbytes_goldens.py) and by hand.
#include <cstring>
#include <limits>

#include "tests/kernels/operands.h"
#include "tests/near.h"

namespace plimsoll::kernels::test {

namespace {

const KernelTable& k = host_kernels();

Json golden_file() {
  std::ifstream file(PLIMSOLL_GOLDEN "/kernels/optimizers_8bit.json");
  return Json::parse(file);
}

Tensor floats(const Json& values) {
  return {{std::ssize(values)}, DType::fp32, values.get<std::vector<double>>()};
}

Tensor codes(std::int64_t n) {
  return {{n}, DType::uint8};
}
std::vector<int> codes_of(const Tensor& t) {
  std::vector<int> out;
  for (const std::byte b : t.bytes) out.push_back(static_cast<int>(b));
  return out;
}

struct State {
  explicit State(std::int64_t n, bool two = true)
      : weight({n}, DType::fp32),
        first(codes(n)),
        first_scales({ceil_divide(n, kStateBlock)}, DType::fp32) {
    if (!two) return;
    second = codes(n);
    second_scales = first_scales;
  }
  OptimizerTensors with(const ConstTensorView& gradient) {
    return {.weight = weight,
            .first_moment = first,
            .second_moment = second,
            .first_scales = first_scales,
            .second_scales = second_scales,
            .gradient = gradient};
  }
  bool operator==(const State&) const = default;

  Tensor weight, first, second, first_scales, second_scales;
};

// As the golden was made.
constexpr AdamW kAdamW{
    .learning_rate = 0.01f, .beta1 = 0.875f, .beta2 = 0.96875f, .weight_decay = 0.1f};
constexpr Lion kLion{
    .learning_rate = 0.01f, .beta1 = 0.875f, .beta2 = 0.96875f, .weight_decay = 0.1f};

}  // namespace

TEST_CASE("the maps are bitsandbytes', bit for bit") {
  const Json golden = golden_file();
  for (const auto& [name, map] :
       {std::pair("signed_map", &kSignedMap), std::pair("unsigned_map", &kUnsignedMap)}) {
    CAPTURE(name);
    const auto expected = golden[name].get<std::vector<float>>();
    REQUIRE(expected.size() == 256);
    CHECK(std::memcmp(map->value, expected.data(), sizeof map->value) == 0);
  }
}

TEST_CASE("ten steps of AdamW and Lion in 8 bits are bitsandbytes', and so is every byte kept") {
  const Json golden = golden_file();
  const auto n = golden["count"].get<std::int64_t>();
  const Tensor all = floats(golden["gradients"]);
  for (const bool adam : {true, false}) {
    CAPTURE(adam);
    const Json& expected = golden[adam ? "adam8bit" : "lion8bit"];
    State s(n, adam);
    s.weight = floats(golden["weight"]);
    for (std::int64_t step = 0; step * n < all.elements(); ++step) {
      const ConstTensorView gradient = ConstTensorView(all).rows(step * n, n);
      AdamW options = kAdamW;
      options.step = step + 1;
      if (adam)
        k.adamw(s.with(gradient), options);
      else
        k.lion(s.with(gradient), kLion);
    }
    const std::vector<double> weights = s.weight.values();
    const auto theirs = expected["weight"].get<std::vector<double>>();
    for (std::size_t i = 0; i < weights.size(); ++i)
      CHECK(std::abs(weights[i] - theirs[i]) <= 1e-6);
    CHECK(codes_of(s.first) == expected["state1"].get<std::vector<int>>());
    CHECK(deviation(s.first_scales.values(), floats(expected["absmax1"]).values()) <= 1e-6);
    if (!adam) continue;
    CHECK(codes_of(s.second) == expected["state2"].get<std::vector<int>>());
    CHECK(deviation(s.second_scales.values(), floats(expected["absmax2"]).values()) <= 1e-6);
  }
}

// Momentum 0.5 of nothing: the moment is the gradient. Scale 4, so that gradients of 4, 0, -4, 2
// and 1e-6 are 1 (code 255), 0 (127), -1 (the lowest, 0), 0.5 and 2.5e-7, which is nearer to 0 than
// to 5.5e-7. From code 191 to 254 stand the 64 middles of steps of 0.9 / 64 from 0.1 to 1: the
// nearest to 0.5 is the 28th above the first, 0.1 + 28.5 · 0.9 / 64 = 0.50078.
TEST_CASE("a moment is coded by the nearest of 256 values, times its block's largest") {
  State s(5, false);
  const Tensor g({5}, DType::fp32, {4, 0, -4, 2, 1e-6});
  k.sgd(s.with(g), {.learning_rate = 1, .momentum = 0.5f});
  CHECK(s.first_scales.at(0) == 4);
  CHECK(codes_of(s.first) == std::vector<int>{255, 127, 0, 191 + 28, 127});
  // The step was taken on the moment as it was before it was coded.
  CHECK(s.weight.values() == std::vector<double>{-4, 0, 4, -2, -static_cast<double>(1e-6f)});
  // And the next on what the codes say: 0.5 · 4 · -0.9929688 (-1 + 0.9 / 128).
  const Tensor none({5}, DType::fp32);
  k.sgd(s.with(none), {.learning_rate = 1, .momentum = 0.5f});
  CHECK(tests::near(s.weight.at(2), 4 + 2 * (1 - 0.9 / 128), 1e-7));
}

TEST_CASE("what is 0 stays 0: padding behind a tensor is stepped with it") {
  State s(600);
  Tensor g({600}, DType::fp32);
  for (std::int64_t i = 0; i < 300; ++i) g.set(i, static_cast<double>(i) - 150.5);
  for (int step = 1; step <= 3; ++step) {
    AdamW options = kAdamW;
    options.step = step;
    k.adamw(s.with(g), options);
  }
  for (std::int64_t i = 300; i < 600; ++i) CHECK(s.weight.at(i) == 0);
  CHECK(s.first_scales.at(2) == 0);
  CHECK(s.first_scales.at(1) > 0);
}

TEST_CASE("pieces that begin at a block have the bits of the whole") {
  State whole(1000), first(512), rest(488);
  whole.weight = drawn({1000}, DType::bf16, 1);
  first.weight = drawn({1000}, DType::bf16, 1);
  rest.weight = first.weight;
  first.weight.bytes.resize(512 * 2);
  first.weight.shape = {512};
  rest.weight.bytes.erase(rest.weight.bytes.begin(), rest.weight.bytes.begin() + 512 * 2);
  rest.weight.shape = {488};
  const Tensor g = drawn({1000}, DType::bf16, 2);
  for (int step = 1; step <= 3; ++step) {
    AdamW options = kAdamW;
    options.step = step;
    k.adamw(whole.with(g), options);
    k.adamw(first.with(ConstTensorView(g).rows(0, 512)), options);
    OptimizerTensors second = rest.with(ConstTensorView(g).rows(512, 488));
    second.first_element = 512;
    k.adamw(second, options);
  }
  for (const auto& [all, a, b] : {std::tuple(&whole.weight, &first.weight, &rest.weight),
                                  std::tuple(&whole.first, &first.first, &rest.first),
                                  std::tuple(&whole.second, &first.second, &rest.second)}) {
    std::vector<std::byte> joined = a->bytes;
    joined.insert(joined.end(), b->bytes.begin(), b->bytes.end());
    CHECK(joined == all->bytes);
  }
}

TEST_CASE("an overflow changes no byte of moments in 8 bits") {
  State s(300);
  const Tensor g = drawn({300}, DType::fp32, 3), overflow({1}, DType::int32, 1);
  k.adamw(s.with(g), kAdamW);
  const State before = s;
  OptimizerTensors t = s.with(g);
  t.overflow = overflow;
  k.adamw(t, kAdamW);
  CHECK(s == before);
}

TEST_CASE("moments in 8 bits without a scale for each block are refused") {
  State s(257);
  const Tensor g({257}, DType::fp32), one({1}, DType::fp32);
  OptimizerTensors t = s.with(g);
  t.first_scales = {};
  CHECK_THROWS_AS(k.adamw(t, kAdamW), Error);
  s.second_scales = one;
  CHECK_THROWS_AS(k.adamw(s.with(g), kAdamW), Error);
  State mixed(257);
  mixed.second = Tensor({257}, DType::fp32);
  mixed.second_scales = {};
  CHECK_THROWS_AS(k.adamw(mixed.with(g), kAdamW), Error);
}

}  // namespace plimsoll::kernels::test
