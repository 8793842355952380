// Are the goldens what they say? Everything that can be told without running a model.
#include "tests/runtime/goldens.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>

#include "kernels/attention_kernels.h"
#include "models/lora.h"
#include "models/model_reader.h"
#include "tests/near.h"

namespace plimsoll::runtime::test {
namespace {

constexpr const char* kAdapters[] = {"gpt2-lora", "llama-lora"};

double cross_entropy(const std::vector<double>& logits, const std::vector<std::int32_t>& targets) {
  const std::size_t vocab = logits.size() / targets.size();
  double sum = 0;
  int counted = 0;
  for (std::size_t row = 0; row < targets.size(); ++row) {
    if (targets[row] == kernels::kIgnoreIndex) continue;
    double total = 0;
    for (std::size_t i = 0; i < vocab; ++i) total += std::exp(logits[row * vocab + i]);
    sum += std::log(total) - logits[row * vocab + static_cast<std::size_t>(targets[row])];
    ++counted;
  }
  return sum / counted;
}

// Of the i-th instance, the innermost range running fastest: layer, expert.
std::vector<std::int64_t> places(const models::ParameterRow& row, std::int64_t i) {
  std::vector<std::int64_t> out(row.ranges.size());
  for (std::size_t r = out.size(); r-- > 0; i /= row.ranges[r].count)
    out[r] = row.ranges[r].first + i % row.ranges[r].count * row.ranges[r].step;
  return out;
}

std::vector<std::string> trained_names(const models::ModelSpec& model) {
  std::vector<std::string> names;
  for (const models::ParameterRow& row : model.parameters)
    for (std::int64_t i = 0; i < row.instances() && !row.tied; ++i)
      names.push_back(models::expand(row.name, places(row, i)));
  std::ranges::sort(names);
  return names;
}

TEST_CASE("a golden loss is the cross-entropy of the golden logits and targets") {
  for (const char* name : kGoldenModels) {
    CAPTURE(name);
    const GoldenModel golden(name);
    for (const char* precision : {"fp32", "bf16"}) {
      const std::string p = precision;
      const double loss = cross_entropy(golden.values(p + ".logits"), golden.targets(0));
      CHECK(tests::near(loss, golden.values(p + ".loss")[0], 1e-6));
    }
    CHECK(golden.values("fp32.losses")[0] == golden.values("fp32.loss")[0]);
    CHECK(golden.values("fp32.losses").size() == kGoldenSteps);
    CHECK(golden.values("fp32.text.losses").size() == kGoldenSteps);
  }
}

TEST_CASE("targets are the ids that follow, but for what is ignored") {
  for (const char* name : kGoldenModels) {
    const GoldenModel golden(name);
    for (int step = 0; step < kGoldenSteps; ++step) {
      const auto ids = golden.ids(step), targets = golden.targets(step);
      int ignored = 0;
      for (std::size_t i = 0; i + 1 < ids.size(); ++i)
        if (targets[i] == kernels::kIgnoreIndex)
          ++ignored;
        else if ((i + 1) % static_cast<std::size_t>(golden.length()) != 0)
          CHECK(targets[i] == ids[i + 1]);
      CHECK(targets.back() == kernels::kIgnoreIndex);
      CHECK(ignored == (step == 1 ? golden.length() / 2 : 0));
    }
  }
}

TEST_CASE("gradients, trained weights and deviations are there for each parameter of the table") {
  for (const char* name : kGoldenModels) {
    CAPTURE(name);
    const GoldenModel golden(name);
    const models::ModelSpec model = models::model_from_path(golden.config());
    const std::vector<std::string> names = trained_names(model);
    CHECK(golden.weights().names() == names);
    for (const char* prefix : {"fp32.grad.", "bf16.grad.", "fp32.after10."})
      CHECK(golden.results().names(prefix) == names);
    for (const std::string& parameter : names) {
      CHECK(golden.results().shape("fp32.grad." + parameter) == golden.weights().shape(parameter));
      CHECK(golden.own_deviation("fp32.grad." + parameter) < 2e-6);
      CHECK(golden.own_deviation("bf16.grad." + parameter) < 2.5e-2);
      CHECK(golden.own_deviation("fp32.after10." + parameter) < 2e-5);
    }
    CHECK(model.notes.empty());  // the files hold just the model
  }
}

TEST_CASE(
    "an adapter's goldens are there for each A and B, and for each weight that merging changes") {
  for (const char* name : kAdapters) {
    CAPTURE(name);
    const GoldenModel golden(name);
    const auto names = golden.weights().names();
    CHECK(golden.results().names("fp32.grad.") == names);
    CHECK(golden.results().names("bf16.grad.") == names);
    CHECK(golden.results().names("fp32.after10.") == names);
    CHECK(golden.results().names("fp32.merged.").size() * 2 == names.size());
  }
}

TEST_CASE("the distance of two vectors") {
  CHECK(deviation({3, 4}, {3, 4}) == 0);
  CHECK(deviation({3, 9}, {3, 4}) == 1);  // 5 / 5
  CHECK(std::isinf(deviation({1}, {1, 2})));
  CHECK(std::isinf(deviation({std::nan("")}, {1})));
}

}  // namespace
}  // namespace plimsoll::runtime::test
