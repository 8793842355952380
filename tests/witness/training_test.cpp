// Whole training runs: other numbers of ranks, an overflow, and whether anything is learned.
#include <doctest/doctest.h>

#include <cmath>
#include <cstdio>
#include <cstdlib>

#include "models/model_reader.h"
#include "runtime/io/weight_source.h"
#include "tests/near.h"
#include "tests/witness/golden_training.h"

namespace plimsoll::witness {
namespace {

using models::Precision;
using models::Strategy;
using runtime::test::deviation;

bool verbose() {
  return std::getenv("PLIMSOLL_DEVIATIONS") != nullptr;
}

// Eight sequences a step, however they are shared.
struct World {
  std::int64_t ranks, micro_batch, accum;
  int zero;
  std::int64_t group;
};

Training shared(const Golden& golden, const World& world) {
  Strategy s = strategy_of(Precision::fp32, world.ranks, world.zero);
  s.data.shard_group = world.group;
  Training training = golden.training_on_text(s, {world.micro_batch, world.accum});
  // A gradient that is nothing but rounding (of the biases of keys: numerics_test.cpp) is no step.
  training.optimizer.eps = 1e-5f;
  return training;
}

// 1 is 1e-6; of biases of keys, whose own gradient is rounding, 1e-5.
double largest_deviation(const Values& ours, const Values& theirs) {
  double largest = ours.size() == theirs.size() ? 0 : 1e9;
  for (const auto& [name, values] : ours) {
    const double bound = name.ends_with("c_attn.bias") ? 1e-5 : 1e-6;
    const double far = deviation(wide(values), wide(theirs.at(name))) / bound;
    if (verbose()) std::printf("%.2e of %.0e %s\n", far, bound, name.c_str());
    largest = std::max(largest, far);
  }
  return largest;
}

TEST_CASE("other numbers of ranks and hybrid groups train within 1e-6 of one rank") {
  for (const char* model : {"gpt2", "llama"}) {
    Golden golden(model);
    // Masks are of the sequence in the step, whoever has it.
    golden.model.decoder->embedding_dropout = 0.1;
    golden.model.decoder->residual_dropout = model == std::string("gpt2") ? 0.1 : 0;
    const World one{1, 8, 1, 0, 0};
    const Gradients whole = gradients(shared(golden, one));
    const Trained alone = trained(shared(golden, one), 3);
    for (const World& world :
         {World{1, 2, 4, 0, 0}, World{2, 4, 1, 0, 0}, World{2, 4, 1, 3, 0}, World{4, 2, 1, 2, 0},
          World{4, 2, 1, 1, 2}, World{4, 2, 1, 2, 2}, World{4, 2, 1, 3, 2}, World{4, 1, 2, 3, 2},
          World{8, 1, 1, 0, 0}, World{8, 1, 1, 1, 4}, World{8, 1, 1, 2, 2}, World{8, 1, 1, 3, 4}}) {
      const std::string name = model;
      CAPTURE(name);
      CAPTURE(world.ranks);
      CAPTURE(world.zero);
      CAPTURE(world.group);
      const Gradients parts = gradients(shared(golden, world));
      CHECK(std::abs(parts.loss - whole.loss) <= 1e-6 * whole.loss);
      CHECK(largest_deviation(parts.values, whole.values) <= 1);
      const Trained together = trained(shared(golden, world), 3);
      CHECK(deviation(together.losses(), alone.losses()) <= 1e-6);
      CHECK(deviation(together.norms(), alone.norms()) <= 1e-6);
      CHECK(largest_deviation(together.weights, alone.weights) <= 1);
    }
  }
}

// Weights, masters and both moments.
std::vector<Values> states_of(runtime::Trainer& trainer) {
  using enum runtime::shard::State;
  std::vector<Values> states;
  for (const auto state : {weights, masters, first_moment, second_moment})
    states.push_back(named(trainer.model().whole(state)));
  return states;
}

// A loss scale of 2^40 is beyond fp16 in any gradient of a logit; each step halves it.
TEST_CASE("an overflow skips the step and halves the scale, until the run is the one without it") {
  const Golden golden("llama");
  for (const int zero : {0, 1, 2, 3}) {
    CAPTURE(zero);
    Training training =
        golden.training(strategy_of(Precision::fp16_mixed, 2, zero), {.micro_batch = 1});
    training.tokens = [tokens = training.tokens](std::int64_t, std::int64_t micro,
                                                 std::int64_t rank, auto... to) {
      tokens(0, micro, rank, to...);  // step 0's again and again
    };
    const double initial = std::ldexp(1, 40);
    training.loss_scaler = {.initial = initial, .growth_interval = 3};
    double good_scale = 0;
    std::vector<double> norms;
    Values weights;
    on_ranks(training, [&](runtime::Trainer& trainer) {
      const bool first_rank = trainer.worker().rank == 0;
      double scale = initial;
      const std::vector<Values> before = states_of(trainer);
      int skipped = 0;
      runtime::StepResult step;
      while (true) {
        step = trainer.step(tokens_of(training, trainer.worker().rank), 1e-3f);
        REQUIRE(step.loss_scale == scale);
        REQUIRE(std::isfinite(step.loss));  // it is taken before the scale
        if (!step.skipped) break;
        CHECK(states_of(trainer) == before);
        CHECK(trainer.steps_taken() == 0);
        scale /= 2;
        REQUIRE(++skipped < 40);
      }
      CHECK(skipped >= 10);  // a gradient of 1e-3 times 2^30 is beyond 65504
      CHECK(states_of(trainer) != before);
      CHECK(trainer.steps_taken() == 1);
      if (first_rank) norms.push_back(step.grad_norm);
      for (int good = 1; good < 3; ++good) {
        step = trainer.step(tokens_of(training, trainer.worker().rank), 1e-3f);
        CHECK(!step.skipped);
        CHECK(step.loss_scale == scale);
        if (first_rank) norms.push_back(step.grad_norm);
      }
      const Values after = named(trainer.model().whole(runtime::shard::State::weights));
      // Three good steps: it grows again.
      step = trainer.step(tokens_of(training, trainer.worker().rank), 1e-3f);
      CHECK(step.loss_scale == 2 * scale);
      if (!first_rank) return;
      good_scale = scale;
      weights = after;
    });
    training.loss_scaler = {.initial = good_scale};
    const Trained without = trained(training, 3);
    CHECK(without.norms() == norms);
    CHECK(without.weights == weights);
  }
}

models::ModelSpec tiny(const std::string& name) {
  const std::string config =
      name == "gpt2" ? R"({"model_type": "gpt2", "n_embd": 48, "n_head": 4, "n_layer": 2,
        "vocab_size": 256, "n_positions": 32, "resid_pdrop": 0.1, "embd_pdrop": 0.1,
        "attn_pdrop": 0.1})"
                     : R"({"model_type": "llama", "hidden_size": 48, "num_attention_heads": 4,
        "num_key_value_heads": 2, "intermediate_size": 128, "vocab_size": 256,
        "num_hidden_layers": 2, "max_position_embeddings": 32})";
  return models::read_model(config, name, "", {});
}

// Loss of each of a hundred steps from random weights, 8 sequences of 32 bytes in a step.
std::vector<double> learning(const std::string& name, const Strategy& strategy) {
  const models::ModelSpec model = tiny(name);
  Training training{.model = model, .strategy = strategy};
  training.batch = {.seq_len = 32, .micro_batch = 8 / strategy.gpus};
  training.learning_rate = 3e-3f;
  const std::shared_ptr<runtime::io::WeightSource> weights = runtime::io::random_weights(model, 1);
  training.weights = [weights](const runtime::ModelParameter& parameter, std::int64_t first,
                               std::span<float> to) {
    weights->read(parameter.name, first,
                  {to.data(), DType::fp32, {static_cast<std::int64_t>(to.size())}});
  };
  training.tokens = shipped_text_tokens(training);
  return trained(training, 100).losses();
}

// A first run went from ln 256 = 5.55 to 2.50 (llama) and 3.15 (gpt2, under dropout).
TEST_CASE("a hundred steps on the shipped text lower the loss") {
  struct Expected {
    const char* model;
    Precision precision;
    double loss;
  };
  for (const Expected& e :
       {Expected{"llama", Precision::fp32, 3}, Expected{"llama", Precision::bf16_mixed, 3},
        Expected{"llama", Precision::fp16_mixed, 3}, Expected{"llama", Precision::bf16, 3},
        Expected{"gpt2", Precision::fp32, 3.6}, Expected{"gpt2", Precision::bf16_mixed, 3.6}}) {
    const std::string name = e.model;
    const std::vector<double> losses = learning(name, strategy_of(e.precision, 2, 3));
    double last = 0;
    for (std::size_t i = 90; i < 100; ++i) last += losses[i] / 10;
    if (verbose()) std::printf("%s: from %.4f to %.4f\n", e.model, losses[0], last);
    CAPTURE(name);
    CHECK(tests::near(losses[0], std::log(256), 0.02));
    CHECK(last < e.loss);
  }
}

}  // namespace
}  // namespace plimsoll::witness
