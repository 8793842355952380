// Training on a packed base: what the weights become (kernels/packed_weights.h, held against
// bitsandbytes in tests/kernels) and nothing else differs from a plain run.
#include <doctest/doctest.h>

#include <cmath>

#include "models/storages.h"
#include "runtime/adapters.h"
#include "tests/witness/golden_training.h"

namespace plimsoll::witness {
namespace {

using models::Precision;
using models::Strategy;

constexpr std::pair<const char*, const char*> kAdapters[] = {{"gpt2", "gpt2-lora"},
                                                             {"llama", "llama-lora"}};
constexpr int kSteps = 10;

struct Run {
  Values before, after;
  std::vector<double> losses, norms;
};
Run run(const Training& training) {
  Run out;
  on_ranks(training, [&](runtime::Trainer& trainer) {
    const Values before = named(trainer.model().whole(runtime::shard::State::weights));
    std::vector<double> losses, norms;
    for (int step = 0; step < kSteps; ++step) {
      const auto result =
          trainer.step(tokens_of(training, trainer.worker().rank), training.learning_rate);
      losses.push_back(result.loss);
      norms.push_back(result.grad_norm);
    }
    const Values after = named(trainer.model().whole(runtime::shard::State::weights));
    if (trainer.worker().rank == 0) out = {before, after, losses, norms};
  });
  return out;
}

Strategy on_packed(const char* storage, Precision precision, std::int64_t ranks, int zero) {
  Strategy s = strategy_of(precision, ranks, zero);
  s.deterministic = true;
  s.quantize = {.storage = models::find_packed_storage(storage)};
  return s;
}

runtime::ReadParameter reading(const Values& values) {
  return
      [&values](const runtime::ModelParameter& parameter, std::int64_t first, std::span<float> to) {
        std::copy_n(values.at(parameter.name).begin() + first, to.size(), to.begin());
      };
}

TEST_CASE("ten steps on a packed base are those on its weights dequantized, bit for bit") {
  for (const auto& [model, adapter] : kAdapters) {
    const Golden golden(model, adapter);
    for (const char* storage : {"nf4", "nf4-dq", "int8", "int8-affine"})
      for (const Precision precision : {Precision::fp32, Precision::bf16_mixed})
        for (const auto& [ranks, zero] : {std::pair(1, 0), std::pair(2, 3)}) {
          CAPTURE(model);
          CAPTURE(storage);
          CAPTURE(ranks);
          const Training packed =
              golden.training_on_text(on_packed(storage, precision, ranks, zero));
          const Run ours = run(packed);
          Training plain = packed;
          plain.strategy.quantize.reset();
          plain.weights = reading(ours.before);
          const Run theirs = run(plain);
          CHECK(ours.losses == theirs.losses);
          CHECK(ours.norms == theirs.norms);
          CHECK(ours.after == theirs.after);
          CHECK(ours.losses.front() != ours.losses.back());
        }
  }
}

// The loss of ten steps against that of the base in full: a level of NF4 is 0.17 of the scale wide
// on average, so a weight of a block is some 0.05 of the block's largest off (half a width, less
// where levels are dense), and the loss of a model that small moves with it.
TEST_CASE("a packed base trains as the plain one does, and is not the plain one") {
  const Golden golden("llama", "llama-lora");
  const Run packed = run(golden.training_on_text(on_packed("nf4", Precision::fp32, 1, 0)));
  const Run twice = run(golden.training_on_text(on_packed("nf4-dq", Precision::fp32, 1, 0)));
  Strategy unpacked = strategy_of(Precision::fp32);
  unpacked.deterministic = true;
  const Run plain = run(golden.training_on_text(unpacked));
  for (int i = 0; i < kSteps; ++i) {
    const auto at = static_cast<std::size_t>(i);
    CHECK(std::abs(packed.losses[at] - plain.losses[at]) < 0.1 * plain.losses[at]);
    CHECK(std::abs(twice.losses[at] - plain.losses[at]) < 0.1 * plain.losses[at]);
  }
  // A step of a row is its largest / 127, and a value half a step off at most.
  for (const char* storage : {"int8", "int8-affine"}) {
    const Run eight = run(golden.training_on_text(on_packed(storage, Precision::fp32, 1, 0)));
    CAPTURE(storage);
    for (std::size_t i = 0; i < kSteps; ++i)
      CHECK(std::abs(eight.losses[i] - plain.losses[i]) < 0.002 * plain.losses[i]);
    CHECK(eight.losses != plain.losses);
  }
  CHECK(packed.losses != plain.losses);
  CHECK(packed.losses != twice.losses);
}

TEST_CASE("adapters are not merged into a packed base, and nothing has changed then") {
  const Golden golden("llama", "llama-lora");
  on_ranks(golden.training(on_packed("nf4-dq", Precision::bf16_mixed, 2, 3)),
           [](runtime::Trainer& trainer) {
             const Values before = named(trainer.model().whole(runtime::shard::State::weights));
             runtime::Adapters adapters(trainer);
             try {
               adapters.merge();
               FAIL("merged");
             } catch (const Error& error) {
               CHECK(error.kind() == ErrorKind::unsupported);
               CHECK(error.message().find("packed (--quantize nf4-dq)") != std::string::npos);
             }
             CHECK(!adapters.merged());
             CHECK(named(trainer.model().whole(runtime::shard::State::weights)) == before);
           });
}

}  // namespace
}  // namespace plimsoll::witness
