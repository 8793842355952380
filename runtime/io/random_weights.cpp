#include <algorithm>
#include <array>
#include <span>
#include <unordered_map>

#include "models/initial_values.h"
#include "runtime/io/float_storage.h"
#include "runtime/io/keyed_random.h"
#include "runtime/io/normal.h"
#include "runtime/io/weight_source.h"

namespace plimsoll::runtime::io {

namespace {
using kernels::Philox;
using kernels::TensorView;
using models::InitialKind;
using models::InitialValues;

// Numbers in a buffer at once: a multiple of four, and a little more where a piece begins inside a
// block.
constexpr std::int64_t kAtOnce = 1024;

void draw_uniform(const kernels::RandomKey& key, std::uint64_t block, std::span<float> into) {
  for (std::size_t i = 0; i < into.size(); i += 4) {
    const Philox words = kernels::random_block(key, block + i / 4);
    for (std::size_t j = 0; j < 4; ++j) into[i + j] = static_cast<float>(words[j] * 0x1p-31 - 1);
  }
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
    std::array<float, kAtOnce> buffer;
    for (std::int64_t done = 0; done < count; done += kAtOnce) {
      const std::int64_t n = std::min(kAtOnce, count - done);
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
    const auto block = static_cast<std::uint64_t>(first) / 4;
    const auto inside = static_cast<std::size_t>(first % 4);
    std::array<float, kAtOnce + 4> numbers;
    const auto drawn = std::span(numbers).first((inside + into.size() + 3) / 4 * 4);
    if (values.kind == InitialKind::normal)
      standard_normals(key, block, drawn);
    else
      draw_uniform(key, block, drawn);
    const auto spread = static_cast<float>(values.spread);
    for (std::size_t i = 0; i < into.size(); ++i) into[i] = numbers[inside + i] * spread;
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
