// Adapters merged, unmerged and exchanged, under every sharding.
#include "runtime/adapters.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <functional>

#include "models/model_reader.h"
#include "runtime/io/weight_source.h"
#include "tests/witness/golden_training.h"

namespace plimsoll::witness {
namespace {

using models::Precision;
using models::Strategy;
using runtime::Adapters;
using runtime::AdapterTask;
using runtime::Trainer;
using runtime::shard::State;
using runtime::test::deviation;

constexpr std::pair<const char*, const char*> kAdapters[] = {{"gpt2", "gpt2-lora"},
                                                             {"llama", "llama-lora"}};
constexpr Precision kPrecisions[] = {Precision::fp32, Precision::bf16_mixed, Precision::fp16_mixed,
                                     Precision::bf16};

Values weights_of(Trainer& trainer) {
  return named(trainer.model().whole(State::weights));
}

// Everything that a step reads and changes.
std::vector<Values> states_of(Trainer& trainer) {
  std::vector<Values> states;
  for (const State state :
       {State::weights, State::masters, State::first_moment, State::second_moment})
    states.push_back(named(trainer.model().whole(state)));
  return states;
}

std::string text(const Strategy& s) {
  return "precision " + std::to_string(static_cast<int>(s.precision)) + " ranks " +
         std::to_string(s.gpus) + " zero " + std::to_string(s.data.zero);
}

// Golden sequences of step 0 on every rank and step.
Training same_tokens(Training training) {
  training.tokens = [tokens = training.tokens](std::int64_t, std::int64_t micro, std::int64_t,
                                               auto... to) { tokens(0, micro, 0, to...); };
  return training;
}

Values merged(const Golden& golden, const Strategy& strategy) {
  Values out;
  on_ranks(golden.training(strategy), [&](Trainer& trainer) {
    Adapters adapters(trainer);
    adapters.merge();
    CHECK(adapters.merged());
    const Values weights = weights_of(trainer);
    if (trainer.worker().rank == 0) out = weights;
  });
  return out;
}

TEST_CASE("merged weights are PEFT's; the others are the base's") {
  for (const auto& [model, adapter] : kAdapters) {
    const Golden golden(model, adapter);
    const runtime::test::GoldenModel base(model);
    const Values weights = merged(golden, strategy_of(Precision::fp32));
    const Values rounded = merged(golden, strategy_of(Precision::bf16_mixed));
    std::size_t changed = 0;
    for (const std::string& name : base.weights().names()) {
      CAPTURE(name);
      const bool adapted = golden.results.results().has("fp32.merged." + name);
      changed += adapted ? 1 : 0;
      const std::vector<double> theirs =
          adapted ? golden.results.values("fp32.merged." + name) : base.weights().values(name);
      CHECK(deviation(wide(weights.at(name)), theirs) <= (adapted ? 1e-6 : 0));
      // A rounding to bf16 is 2^-9 of the value at most; the base's weights are exact in it.
      CHECK(deviation(wide(rounded.at(name)), theirs) <= (adapted ? 0x1p-9 : 0));
      CHECK((deviation(wide(weights.at(name)), base.weights().values(name)) > 1e-3) == adapted);
    }
    CHECK(changed == golden.results.results().names("fp32.merged.").size());
    for (const std::string& name : golden.results.weights().names())
      if (name.find("lora_B") != std::string::npos)
        CHECK(std::ranges::all_of(weights.at(name), [](float x) { return x == 0; }));
  }
}

TEST_CASE("merging makes the same bits under every sharding") {
  for (const auto& [model, adapter] : kAdapters) {
    const Golden golden(model, adapter);
    for (const Precision precision : kPrecisions) {
      const Values one = merged(golden, strategy_of(precision));
      for (const std::int64_t ranks : {2, 5})
        for (const int zero : {0, 1, 2, 3}) {
          const Strategy strategy = strategy_of(precision, ranks, zero);
          CAPTURE(text(strategy));
          CHECK(merged(golden, strategy) == one);
        }
    }
  }
}

// Values that depend on the parameter and the element alone.
void drawn(const runtime::ModelParameter& parameter, std::int64_t first, std::span<float> to) {
  const auto seed = static_cast<double>(std::hash<std::string>{}(parameter.name) % 1000);
  for (std::size_t i = 0; i < to.size(); ++i)
    to[i] = static_cast<float>(
        std::sin(seed + 0.7 * static_cast<double>(first + static_cast<std::int64_t>(i))));
}

std::string adapter_weight(const std::string& module, const std::string& matrix) {
  return "base_model.model." + module + ".lora_" + matrix + ".weight";
}

// W + alpha / rank · B · A in fp64; W [out, in], or [in, out] where `transposed`.
std::vector<double> merged_by_hand(const Values& before, const std::string& weight,
                                   const std::string& module, std::int64_t width, double alpha,
                                   bool transposed) {
  constexpr std::size_t kRank = 3;
  const std::vector<float>&a = before.at(adapter_weight(module, "A")),
        &b = before.at(adapter_weight(module, "B"));
  std::vector<double> w = wide(before.at(weight));
  const auto columns = static_cast<std::size_t>(width), in = a.size() / kRank;
  for (std::size_t i = 0; i < w.size(); ++i) {
    const std::size_t row = i / columns, column = i % columns;
    const std::size_t o = transposed ? column : row, k = transposed ? row : column;
    for (std::size_t r = 0; r < kRank; ++r)
      w[i] += alpha / kRank * static_cast<double>(b[o * kRank + r]) *
              static_cast<double>(a[r * in + k]);
  }
  return w;
}

// Matrices of 150 rows are merged in three blocks of 64 at most, cut anywhere by five ranks.
TEST_CASE("matrices of several blocks are merged as by hand") {
  struct Made {
    const char* config;
    const char* weight;
    const char* module;
    std::int64_t width;
    bool transposed;
  };
  for (const Made& made :
       {Made{R"({"model_type": "llama", "hidden_size": 24, "num_attention_heads": 4,
              "intermediate_size": 150, "vocab_size": 61, "num_hidden_layers": 1,
              "max_position_embeddings": 32})",
             "model.layers.0.mlp.up_proj.weight", "model.layers.0.mlp.up_proj", 24, false},
        Made{R"({"model_type": "gpt2", "n_embd": 150, "n_head": 3, "n_layer": 1, "vocab_size": 61,
              "n_positions": 32})",
             "transformer.h.0.attn.c_attn.weight", "transformer.h.0.attn.c_attn", 450, true}}) {
    CAPTURE(made.weight);
    Training training{.model = models::read_model(made.config, "made", "", {})};
    training.batch = {.seq_len = 4, .micro_batch = 1};
    training.weights = drawn;
    Values one;
    for (const std::int64_t ranks : {1, 5}) {
      training.strategy = strategy_of(Precision::fp32, ranks, 3);
      training.strategy.lora = models::Lora{.rank = 3, .alpha = 5, .targets = {"all-linear"}};
      on_ranks(training, [&](Trainer& trainer) {
        const Values before = weights_of(trainer);
        Adapters(trainer).merge();
        const Values after = weights_of(trainer);
        const std::vector<double> by_hand =
            merged_by_hand(before, made.weight, made.module, made.width, 5, made.transposed);
        CHECK(deviation(wide(after.at(made.weight)), by_hand) <= 1e-7);
        CHECK(deviation(wide(before.at(made.weight)), by_hand) > 0.1);
        // Whole on the host, for a file: the same bits.
        std::vector<float> whole = before.at(made.weight);
        const std::vector<float>&a = before.at(adapter_weight(made.module, "A")),
              &b = before.at(adapter_weight(made.module, "B"));
        const auto width = made.width, rows = std::ssize(whole) / width;
        runtime::add_adapter({a, b, 5, made.transposed}, {rows, width}, whole);
        CHECK(whole == after.at(made.weight));
        if (ranks == 1)
          one = after;
        else
          CHECK(after == one);
      });
    }
  }
}

TEST_CASE("a merged model computes what it did; unmerged, every bit is as it was") {
  for (const auto& [model, adapter] : kAdapters) {
    const Golden golden(model, adapter);
    for (const Precision precision : kPrecisions)
      for (const int zero : {0, 1, 2, 3}) {
        const Strategy strategy = strategy_of(precision, 2, zero);
        CAPTURE(text(strategy));
        const Training training = same_tokens(golden.training(strategy));
        on_ranks(training, [&](Trainer& trainer) {
          const runtime::Tokens tokens = tokens_of(training, trainer.worker().rank);
          trainer.step(tokens, 1e-3f);
          const auto logits = [&] { return wide(trainer.logits(golden.results.ids(0))); };
          const std::vector<Values> before = states_of(trainer);
          const std::vector<double> apart = logits();
          const Bytes live = trainer.worker().memory.ledger().live();
          Adapters adapters(trainer);
          adapters.merge();
          const std::vector<double> together = logits();
          CHECK(deviation(together, apart) <= (precision == Precision::fp32 ? 1e-5 : 2e-2));
          CHECK(states_of(trainer) != before);
          adapters.unmerge();
          CHECK(!adapters.merged());
          CHECK(states_of(trainer) == before);
          CHECK(logits() == apart);
          CHECK(trainer.worker().memory.ledger().live() == live);
          adapters.merge();
          CHECK(logits() == together);
          adapters.unmerge();
        });
      }
  }
}

// A second task: random A, and B 0.
runtime::ReadParameter another(const Golden& golden) {
  const std::shared_ptr<runtime::io::WeightSource> weights =
      runtime::io::random_adapter(models::lora_modules(golden.model, *golden.lora), 5);
  return
      [weights](const runtime::ModelParameter& parameter, std::int64_t first, std::span<float> to) {
        check(parameter.adapter, ErrorKind::internal, parameter.name + " is no adapter's");
        weights->read(parameter.name, first,
                      {to.data(), DType::fp32, {static_cast<std::int64_t>(to.size())}});
      };
}

// Three steps of each of two tasks, in turns or one after the other.
std::vector<std::vector<Values>> two_tasks(const Golden& golden, const Training& training,
                                           bool in_turns) {
  std::vector<std::vector<Values>> ends;
  on_ranks(training, [&](Trainer& trainer) {
    const runtime::Tokens tokens = tokens_of(training, trainer.worker().rank);
    const auto step = [&] { trainer.step(tokens, 1e-2f); };
    Adapters adapters(trainer);
    std::vector<std::vector<Values>> mine;
    if (in_turns) {
      step();
      AdapterTask first = adapters.save();
      adapters.load(another(golden));
      step();
      step();
      AdapterTask second = adapters.swap(first);
      CHECK(trainer.steps_taken() == 1);
      step();
      step();
      mine.push_back(states_of(trainer));
      first = adapters.swap(second);
      CHECK(first.steps == 3);
      CHECK(trainer.steps_taken() == 2);
      step();
      mine.push_back(states_of(trainer));
    } else {
      for (int i = 0; i < 3; ++i) step();
      mine.push_back(states_of(trainer));
      adapters.load(another(golden));
      for (int i = 0; i < 3; ++i) step();
      mine.push_back(states_of(trainer));
    }
    if (trainer.worker().rank == 0) ends = mine;
  });
  return ends;
}

TEST_CASE("tasks that are trained in turns end where they end alone, bit for bit") {
  for (const auto& [model, adapter] : kAdapters) {
    Golden golden(model, adapter);
    for (const DType dtype : {DType::fp32, DType::bf16})
      for (const int zero : {0, 1, 2, 3}) {
        golden.lora->dtype = dtype;  // 16 bits: with masters
        const Strategy strategy = strategy_of(Precision::bf16_mixed, 3, zero);
        CAPTURE(text(strategy));
        const Training training = same_tokens(golden.training(strategy));
        const auto alone = two_tasks(golden, training, false);
        CHECK(two_tasks(golden, training, true) == alone);
        CHECK(alone[0] != alone[1]);
      }
  }
}

// Adapters of rank 40 on 24 and 150 wide modules: 28,560 elements of a layer, whose moments have 8
// bits. A task that is put away and comes back has every code and scale that it had.
TEST_CASE("a task with moments in 8 bits goes on as if it had never been away") {
  Training training{.model = models::read_model(
                        R"({"model_type": "llama", "hidden_size": 24, "num_attention_heads": 4,
                            "intermediate_size": 150, "vocab_size": 61, "num_hidden_layers": 1,
                            "max_position_embeddings": 32})",
                        "made", "", {})};
  training.batch = {.seq_len = 4, .micro_batch = 1};
  training.weights = drawn;
  training.tokens = [](std::int64_t, std::int64_t, std::int64_t, std::span<std::int32_t> ids,
                       std::span<std::int32_t> targets) {
    for (std::size_t i = 0; i < ids.size(); ++i) {
      ids[i] = static_cast<std::int32_t>(7 * i + 3);
      targets[i] = static_cast<std::int32_t>(5 * i + 1);
    }
  };
  for (const int zero : {0, 1, 3}) {
    training.strategy = strategy_of(Precision::fp32, 2, zero);
    training.strategy.optimizer = models::Optimizer::adam8bit;
    training.strategy.lora = models::Lora{.rank = 40, .alpha = 5, .targets = {"all-linear"}};
    const auto trained = [&](bool goes_away) {
      std::vector<Values> end;
      on_ranks(training, [&](Trainer& trainer) {
        const runtime::Tokens tokens = tokens_of(training, trainer.worker().rank);
        Adapters adapters(trainer);
        trainer.step(tokens, 1e-2f);
        if (goes_away) {
          const AdapterTask task = adapters.save();
          adapters.load(drawn);
          trainer.step(tokens, 1e-2f);
          adapters.swap(task);
        }
        for (int i = 0; i < 2; ++i) trainer.step(tokens, 1e-2f);
        const std::vector<Values> states = states_of(trainer);
        if (trainer.worker().rank == 0) end = states;
      });
      return end;
    };
    CAPTURE(zero);
    const std::vector<Values> stays = trained(false);
    CHECK(trained(true) == stays);
    const Values& codes = stays[2];
    CHECK(std::ranges::any_of(codes, [](const auto& c) {
      return std::ranges::any_of(c.second, [](float x) { return x > 200; });
    }));
  }
}

TEST_CASE("what cannot be is refused by name") {
  const Golden golden("llama", "llama-lora");
  const auto message = [](auto act) -> std::string {
    try {
      act();
    } catch (const Error& error) {
      return error.message();
    }
    return "";
  };
  const Training training = golden.training(strategy_of(Precision::fp32));
  on_ranks(training, [&](Trainer& trainer) {
    Adapters adapters(trainer);
    CHECK(message([&] { adapters.unmerge(); }) == "unmerge: the adapters are not merged");
    AdapterTask task = adapters.save();
    adapters.merge();
    CHECK(message([&] { adapters.merge(); }).starts_with("merge: the adapters are merged"));
    CHECK(message([&] { adapters.swap(task); }).find("are merged") != std::string::npos);
    CHECK(message([&] { adapters.load(training.weights); }).starts_with("load: the adapters"));
    trainer.step(tokens_of(training, 0), 1e-3f);
    CHECK(message([&] { adapters.unmerge(); }).find("would be lost") != std::string::npos);
  });
  on_ranks(training, [&](Trainer& trainer) {
    Adapters adapters(trainer);
    AdapterTask other = adapters.save();
    other.states.front().pop_back();
    CHECK(message([&] { adapters.swap(other); }) == "adapters of another model or sharding");
  });
  const Training without = Golden("llama").training(strategy_of(Precision::fp32));
  on_ranks(without, [&](Trainer& trainer) {
    CHECK(message([&] { Adapters none(trainer); }).starts_with("there are no adapters"));
  });
  Strategy trains_base = strategy_of(Precision::bf16_mixed);
  trains_base.train = {"*q_proj*"};
  on_ranks(golden.training(trains_base), [&](Trainer& trainer) {
    Adapters adapters(trainer);
    CHECK(message([&] { adapters.merge(); }).find("q_proj.weight is trained itself") !=
          std::string::npos);
    CHECK(!adapters.merged());
  });
}

}  // namespace
}  // namespace plimsoll::witness
