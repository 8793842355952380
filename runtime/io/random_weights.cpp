#include <algorithm>
#include <array>
#include <cmath>
#include <numbers>
#include <span>
#include <unordered_map>

#include "models/initial_values.h"
#include "runtime/io/float_storage.h"
#include "runtime/io/keyed_random.h"
#include "runtime/io/weight_source.h"

namespace plimsoll::runtime::io {

namespace {
using kernels::Philox;
using kernels::TensorView;
using models::InitialKind;
using models::InitialValues;

std::array<double, 4> normal(const Philox& words) {
  std::array<double, 4> numbers{};
  for (std::size_t pair = 0; pair < 4; pair += 2) {
    const double u = (words[pair] + 0.5) * 0x1p-32, v = (words[pair + 1] + 0.5) * 0x1p-32;
    const double radius = std::sqrt(-2 * std::log(u)), angle = 2 * std::numbers::pi * v;
    numbers[pair] = radius * std::cos(angle);
    numbers[pair + 1] = radius * std::sin(angle);
  }
  return numbers;
}

std::array<double, 4> uniform(const Philox& words) {
  std::array<double, 4> numbers{};
  for (std::size_t i = 0; i < 4; ++i) numbers[i] = words[i] * 0x1p-31 - 1;
  return numbers;
}

class RandomWeights : public WeightSource {
 public:
  explicit RandomWeights(std::uint64_t seed) : seed_(seed) {}

  void add(const models::ParameterRow& row, const InitialValues& values) {
    const std::int64_t elements = row.shape.elements().value();
    const std::int64_t width = row.shape.rank == 0 ? 1 : elements / row.shape.axes[0];
    // Named by its table, so that both are the same numbers.
    for (const std::string& name : models::tensor_names(row))
      rules_.emplace(name, Rule{values, elements, width, name});
  }
  void tie(const models::ParameterRow& head, const std::string& table) {
    rules_.emplace(head.name, rules_.at(table));
  }

  void read(const std::string& parameter, std::int64_t first, TensorView into) const override {
    const auto it = rules_.find(parameter);
    check(it != rules_.end(), ErrorKind::internal,
          [&] { return "no rule to draw " + parameter + " by"; });
    const Rule& rule = it->second;
    const std::int64_t count = into.elements();
    check(first >= 0 && count <= rule.elements - first, ErrorKind::internal,
          [&] { return "a piece of " + parameter + " beyond its end"; });
    std::array<float, 1024> buffer;
    for (std::int64_t done = 0; done < count; done += std::ssize(buffer)) {
      const std::int64_t n = std::min<std::int64_t>(std::ssize(buffer), count - done);
      draw(rule, first + done, std::span(buffer).first(static_cast<std::size_t>(n)));
      convert({buffer.data(), DType::fp32, {n}}, piece(into, done, n));
    }
  }

  std::string origin() const override { return "random (seed " + std::to_string(seed_) + ")"; }

 private:
  struct Rule {
    InitialValues values;
    std::int64_t elements, width;  // of a row of the first axis
    std::string name;
  };

  void draw(const Rule& rule, std::int64_t first, std::span<float> into) const {
    const InitialValues& values = rule.values;
    if (values.kind == InitialKind::zeros || values.kind == InitialKind::ones) {
      for (float& x : into) x = values.kind == InitialKind::ones ? 1 : 0;
      return;
    }
    const kernels::RandomKey key = keyed(rule.name, seed_);
    std::array<double, 4> numbers{};
    for (std::size_t i = 0; i < into.size(); ++i) {
      const auto element = static_cast<std::uint64_t>(first) + i;
      if (i == 0 || element % 4 == 0) {
        const Philox words = kernels::random_block(key, element / 4);
        numbers = values.kind == InitialKind::normal ? normal(words) : uniform(words);
      }
      into[i] = static_cast<float>(numbers[element % 4] * values.spread);
    }
    if (values.zero_row) zero(*values.zero_row * rule.width, rule.width, first, into);
  }

  static void zero(std::int64_t begin, std::int64_t count, std::int64_t first,
                   std::span<float> into) {
    const std::int64_t last = std::min(begin + count, first + std::ssize(into));
    for (std::int64_t i = std::max(begin, first); i < last; ++i)
      into[static_cast<std::size_t>(i - first)] = 0;
  }

  std::uint64_t seed_;
  std::unordered_map<std::string, Rule> rules_;
};
}  // namespace

std::unique_ptr<WeightSource> random_weights(const models::ModelSpec& model, std::uint64_t seed) {
  auto weights = std::make_unique<RandomWeights>(seed);
  for (const models::ParameterRow& row : model.parameters)
    if (!row.tied) weights->add(row, models::initial_values(model, row));
  for (const models::ParameterRow& row : model.parameters)
    if (row.tied) weights->tie(row, models::tied_table(model, row).name);
  return weights;
}

std::unique_ptr<WeightSource> random_adapter(const std::vector<models::LoraModule>& modules,
                                             std::uint64_t seed) {
  auto weights = std::make_unique<RandomWeights>(seed);
  for (const models::LoraModule& module : modules) {
    weights->add(module.a, models::initial_lora_a(module));
    weights->add(module.b, models::initial_lora_b(module));
  }
  return weights;
}

}  // namespace plimsoll::runtime::io
