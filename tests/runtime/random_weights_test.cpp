#include <algorithm>
#include <cmath>
#include <numbers>

#include "runtime/io/normal.h"
#include "tests/near.h"
#include "tests/runtime/weights.h"

using namespace plimsoll;
using models::ModelSpec;
using runtime::io::WeightSource;
using runtime::test::check_refused;
using runtime::test::golden_adapter;
using runtime::test::golden_spec;
using runtime::test::GoldenModel;
using runtime::test::read;

namespace {
double mean_of(const std::vector<double>& values) {
  double sum = 0;
  for (const double x : values) sum += x;
  return sum / static_cast<double>(values.size());
}
double deviation_of(const std::vector<double>& values) {
  double squares = 0;
  for (const double x : values) squares += x * x;
  return std::sqrt(squares / static_cast<double>(values.size()) -
                   mean_of(values) * mean_of(values));
}
}  // namespace

TEST_CASE("asking for what is not there is our own error") {
  const GoldenModel golden("llama");
  const auto stored = runtime::io::stored_weights(golden_spec(golden), golden.folder());
  const auto drawn = runtime::io::random_weights(golden_spec(golden), 1);
  for (const WeightSource* weights : {stored.get(), drawn.get()}) {
    check_refused([&] { (void)read(*weights, "model.norm.bias", 0, 1); }, ErrorKind::internal, "");
    check_refused([&] { (void)read(*weights, "model.norm.weight", 1, 32); }, ErrorKind::internal,
                  "beyond its end");
    check_refused([&] { (void)read(*weights, "model.norm.weight", -1, 1); }, ErrorKind::internal,
                  "beyond its end");
  }
}

TEST_CASE("random weights are what Philox, FNV-1a and Box-Muller make of seed, name and index") {
  const ModelSpec model = golden_spec(GoldenModel("gpt2"));
  const auto weights = runtime::io::random_weights(model, 42);
  // The same formulas in Python: normals of blocks 0 and 1000 of ("transformer.wte.weight", 42).
  const std::vector<double> first{1.1458792526743775, 1.8920994058618075, -0.012664414718622058,
                                  0.5697532197073535};
  const std::vector<double> later{-1.0793976396357463, -0.8805094618751079, -0.18658320186693875,
                                  -0.8065645076804318};
  const auto of = [&](std::int64_t at) { return read(*weights, "transformer.wte.weight", at, 4); };
  for (std::size_t i = 0; i < 4; ++i) {
    CHECK(std::abs(of(0)[i] - 0.02 * first[i]) < 2e-8);
    CHECK(std::abs(of(4000)[i] - 0.02 * later[i]) < 2e-8);
  }
  CHECK(weights->origin() == "random (seed 42)");
}

TEST_CASE("normal numbers are within 1e-6 of Box and Muller's, where the words are extreme too") {
  // libm in fp64 is the other opinion.
  const kernels::RandomKey key{.seed = 11};
  std::vector<float> numbers(400'000);
  runtime::io::standard_normals(key, 5, numbers);
  double worst = 0;
  for (std::size_t i = 0; i < numbers.size(); i += 2) {
    const kernels::Philox words = kernels::random_block(key, 5 + i / 4);
    const double u = (words[i % 4] + 0.5) * 0x1p-32, v = (words[i % 4 + 1] + 0.5) * 0x1p-32;
    const double radius = std::sqrt(-2 * std::log(u)), angle = 2 * std::numbers::pi * v;
    worst = std::max({worst, std::abs(numbers[i] - radius * std::cos(angle)),
                      std::abs(numbers[i + 1] - radius * std::sin(angle))});
  }
  CHECK(worst < 1e-6);
  CHECK(worst > 0);
}

TEST_CASE("random weights are the same under any sharding, and in a model of fewer layers") {
  const std::string config = R"({"model_type": "gpt2", "n_embd": 64, "n_head": 2, "vocab_size": 997,
                                 "n_layer": )";
  const ModelSpec deep = models::read_model(config + "7}", "deep", "config.json");
  const ModelSpec flat = models::read_model(config + "2}", "flat", "config.json");
  const auto weights = runtime::io::random_weights(deep, 3);
  const std::string name = "transformer.wte.weight";
  const std::int64_t n = 997 * 64;
  const std::vector<double> whole = read(*weights, name, 0, n);
  std::vector<double> pieces;
  for (std::int64_t at = 0, length = 1; at < n; at += length, length = 2 * length + 1) {
    length = std::min(length, n - at);
    for (const double x : read(*weights, name, at, length)) pieces.push_back(x);
  }
  CHECK(pieces == whole);
  CHECK(read(*runtime::io::random_weights(flat, 3), name, 0, n) == whole);
  CHECK(read(*runtime::io::random_weights(flat, 4), name, 0, n) != whole);
  CHECK(read(*weights, "lm_head.weight", 0, n) == whole);
  CHECK(read(*weights, "transformer.h.0.mlp.c_fc.weight", 0, 64) !=
        read(*weights, "transformer.h.1.mlp.c_fc.weight", 0, 64));
}

TEST_CASE("random weights have the spread of the family's rule") {
  const ModelSpec model = models::read_model(
      R"({"model_type": "llama", "hidden_size": 256, "num_attention_heads": 4, "vocab_size": 1000,
          "intermediate_size": 512, "num_hidden_layers": 2, "pad_token_id": 7, "mlp_bias": true,
          "initializer_range": 0.05})",
      "model", "config.json");
  const auto weights = runtime::io::random_weights(model, 5);
  std::vector<double> table = read(*weights, "model.embed_tokens.weight", 0, 256000);
  // The mean of n normal numbers has deviation s / sqrt(n), their deviation s / sqrt(2 n): 5 times
  // that is 5e-4 and 3.5e-4.
  CHECK(std::abs(mean_of(table)) < 5e-4);
  CHECK(std::abs(deviation_of(table) - 0.05) < 3.5e-4);
  // Of 256000 normal numbers, 4.55 % are beyond two deviations: 11648 give or take 5 · 105.
  const auto far = std::ranges::count_if(table, [](double x) { return std::abs(x) > 0.1; });
  CHECK(std::abs(far - 11648) < 525);
  for (std::size_t i = 0; i < 256; ++i) CHECK(table[7 * 256 + i] == 0);
  CHECK(read(*weights, "model.embed_tokens.weight", 7 * 256 - 1, 2)[0] != 0);
  CHECK(read(*weights, "model.embed_tokens.weight", 8 * 256 - 1, 2)[1] != 0);
  CHECK(read(*weights, "lm_head.weight", 7 * 256, 1)[0] != 0);
  CHECK(read(*weights, "model.norm.weight", 0, 256) == std::vector<double>(256, 1));
  CHECK(read(*weights, "model.layers.1.mlp.up_proj.bias", 0, 512) == std::vector<double>(512, 0));
}

TEST_CASE("new adapters are uniform in A and 0 in B") {
  const auto modules = golden_adapter("gpt2-lora", 100);
  const auto adapter = runtime::io::random_adapter(modules, 7);
  const std::string a = "base_model.model.transformer.h.1.attn.c_attn.lora_A.weight";
  const std::vector<double> values = read(*adapter, a, 0, 3600);
  // in = 36, so |A| <= 1/6; uniform numbers deviate by bound / sqrt(3) = 0.0962.
  for (const double x : values) CHECK(std::abs(x) <= 1.0 / 6);
  CHECK(std::abs(deviation_of(values) - 0.0962) < 0.005);
  CHECK(std::abs(mean_of(values)) < 0.008);
  // The same formulas in Python: block 3 of (a, 7).
  const std::vector<double> expected{-0.46735445875674486, 0.7569173383526504, -0.30460108583793044,
                                     0.7643568241037428};
  for (std::size_t i = 0; i < 4; ++i) CHECK(tests::near(values[12 + i], expected[i] / 6, 1e-6));
  const std::string b = "base_model.model.transformer.h.1.attn.c_attn.lora_B.weight";
  CHECK(read(*adapter, b, 0, 300) == std::vector<double>(300, 0));
}
