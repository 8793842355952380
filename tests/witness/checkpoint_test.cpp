// Runs that are interrupted and go on from a checkpoint: on the same ranks bit for bit, on others
// with the same states, and never from states that are not theirs.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <limits>

#include "runtime/saved_states.h"
#include "tests/near.h"
#include "tests/scratch_folder.h"
#include "tests/witness/golden_training.h"

namespace plimsoll::witness {
namespace {

using models::Optimizer;
using models::Precision;
using models::Strategy;
using plimsoll::test::ScratchFolder;
using runtime::StepResult;
using runtime::shard::State;

constexpr int kBefore = 2, kAll = 4;

struct Case {
  Precision precision;
  std::int64_t ranks;
  int zero;
  std::int64_t group = 0;
  Optimizer optimizer = Optimizer::adamw;
};

Training training_of(const Golden& golden, const Case& c, Split split = {1, 2}) {
  Strategy s = strategy_of(c.precision, c.ranks, c.zero);
  s.data.shard_group = c.group;
  s.optimizer = c.optimizer;
  if (c.optimizer == Optimizer::galore) s.galore_rank = 3;
  Training training = golden.training_on_text(s, split);
  // Grows behind the third good step, which is one of those that were interrupted.
  training.loss_scaler = {.initial = 1024, .growth_interval = 3};
  return training;
}

// What is not loaded is seen: nothing that a NaN went into is a number.
runtime::ReadParameter nothing_but_nan() {
  return [](const runtime::ModelParameter&, std::int64_t, std::span<float> to) {
    std::ranges::fill(to, std::numeric_limits<float>::quiet_NaN());
  };
}

using States = std::vector<Values>;
States states_of(runtime::Trainer& trainer) {
  States states;
  for (const State state : {State::weights, State::masters, State::first_moment,
                            State::second_moment, State::projector})
    states.push_back(named(trainer.model().whole(state)));
  return states;
}

struct Run {
  std::vector<std::vector<StepResult>> ranks;  // [rank][step]
  std::vector<Bytes> reserved;  // [rank], in the end
  States states;  // rank 0's
};

// Steps `first` … `end`, from the checkpoint in `from` and with one to `to` behind `saved` steps.
Run run(Training training, int end, const ScratchFolder* from, const ScratchFolder* to = nullptr,
        int saved = 0) {
  Run out;
  out.ranks.resize(static_cast<std::size_t>(training.strategy.gpus));
  out.reserved.resize(out.ranks.size());
  if (from != nullptr) training.weights = nothing_but_nan();
  on_ranks(training, [&](runtime::Trainer& trainer) {
    const auto rank = static_cast<std::size_t>(trainer.worker().rank);
    if (from != nullptr) {
      std::filesystem::path found;
      const auto about = runtime::io::read_newest_checkpoint(from->path(), found);
      runtime::load_states(trainer, found, about);
    }
    while (trainer.counts().steps < end) {
      out.ranks[rank].push_back(
          trainer.step(tokens_of(training, trainer.worker().rank), training.learning_rate));
      if (to != nullptr && trainer.counts().steps == saved)
        runtime::save_states(trainer, to->path(), {});
    }
    out.reserved[rank] = trainer.worker().memory.reserved();
    const States states = states_of(trainer);
    if (rank == 0) out.states = states;
  });
  return out;
}

// Bit for bit; `theirs` from step `first` of `ours` on. Times differ.
void check_same(const Run& ours, const Run& theirs, std::size_t first) {
  for (std::size_t rank = 0; rank < ours.ranks.size(); ++rank) {
    CAPTURE(rank);
    CHECK(ours.reserved[rank] == theirs.reserved[rank]);
    REQUIRE(ours.ranks[rank].size() == first + theirs.ranks[rank].size());
    for (std::size_t i = 0; i < theirs.ranks[rank].size(); ++i) {
      const StepResult &a = ours.ranks[rank][first + i], &b = theirs.ranks[rank][i];
      CAPTURE(i);
      CHECK(std::isfinite(a.loss));
      CHECK(a.loss == b.loss);
      CHECK(a.grad_norm == b.grad_norm);
      CHECK(a.loss_scale == b.loss_scale);
      CHECK(a.skipped == b.skipped);
      CHECK(a.memory == b.memory);
    }
  }
  CHECK(ours.states == theirs.states);
}

void check_goes_on(const Golden& golden, const Case& c) {
  CAPTURE(c.precision);
  CAPTURE(c.ranks);
  CAPTURE(c.zero);
  CAPTURE(c.group);
  CAPTURE(c.optimizer);
  const ScratchFolder folder;
  const Training training = training_of(golden, c);
  const Run whole = run(training, kAll, nullptr);
  // Saving changes nothing, of the memory neither.
  check_same(whole, run(training, kAll, nullptr, &folder, kBefore), 0);
  check_same(whole, run(training, kAll, &folder), kBefore);
  if (c.precision == Precision::fp16_mixed)
    CHECK(whole.ranks[0][3].loss_scale == 2 * whole.ranks[0][2].loss_scale);
}

TEST_CASE("a run goes on from its checkpoint bit for bit, under every stage and precision") {
  for (const char* model : {"gpt2", "llama"}) {
    CAPTURE(model);
    Golden golden(model);
    golden.model.decoder->residual_dropout = model == std::string("gpt2") ? 0.1 : 0;
    for (const Precision precision :
         {Precision::fp32, Precision::bf16_mixed, Precision::fp16_mixed, Precision::bf16}) {
      check_goes_on(golden, {precision, 1, 0});
      for (const int zero : {0, 1, 2, 3}) check_goes_on(golden, {precision, 2, zero});
    }
    check_goes_on(golden, {Precision::bf16_mixed, 4, 3, 2});
    check_goes_on(golden, {Precision::bf16_mixed, 4, 1, 2});
    check_goes_on(golden, {Precision::fp32, 3, 2});
  }
}

TEST_CASE("a run goes on with states of every optimizer, in 8 bits too, and with adapters") {
  const Golden golden("gpt2");
  for (const Optimizer optimizer : {Optimizer::sgd, Optimizer::momentum, Optimizer::lion,
                                    Optimizer::lion8bit, Optimizer::adam8bit})
    for (const int zero : {0, 2, 3})
      check_goes_on(golden, {Precision::bf16_mixed, 2, zero, 0, optimizer});
  if (kernels::host_kernels().eigenvectors != nullptr)
    for (const Precision precision : {Precision::fp32, Precision::bf16_mixed, Precision::bf16})
      check_goes_on(golden, {precision, 2, 0, 0, Optimizer::galore});
  const Golden adapted("llama", "llama-lora");
  for (const int zero : {0, 3})
    for (const Precision precision : {Precision::fp32, Precision::bf16_mixed}) {
      Training training = adapted.training(strategy_of(precision, 2, zero), {.micro_batch = 1});
      const ScratchFolder folder;
      const Run whole = run(training, 3, nullptr, &folder, 1);
      check_same(whole, run(training, 3, &folder), 1);
    }
}

// Eight sequences a step, however they are shared.
TEST_CASE("other ranks and stages go on with the same states, and train alike") {
  struct World {
    std::int64_t ranks, micro_batch, accum;
    int zero;
    std::int64_t group;
  };
  const World worlds[] = {{1, 4, 2, 0, 0}, {2, 4, 1, 1, 0}, {4, 2, 1, 3, 0}, {4, 1, 2, 2, 2},
                          {8, 1, 1, 3, 4}, {2, 2, 2, 0, 0}, {8, 1, 1, 2, 0}};
  const Golden golden("gpt2");
  for (const Optimizer optimizer : {Optimizer::adamw, Optimizer::adam8bit})
    for (std::size_t i = 0; i < std::size(worlds); ++i) {
      const auto training = [&](const World& w) {
        Training t = training_of(golden, {Precision::fp32, w.ranks, w.zero, w.group, optimizer},
                                 {w.micro_batch, w.accum});
        t.optimizer.eps = 1e-5f;  // as in training_test.cpp
        return t;
      };
      const World &from = worlds[i], &to = worlds[(i + 1) % std::size(worlds)];
      CAPTURE(optimizer);
      CAPTURE(from.ranks);
      CAPTURE(to.ranks);
      const ScratchFolder folder;
      const Run before = run(training(from), kBefore, nullptr, &folder, kBefore);
      CHECK(run(training(to), kBefore, &folder).states == before.states);
      const Run whole = run(training(from), kAll, nullptr);
      const Run goes_on = run(training(to), kAll, &folder);
      // Codes of 8 bits may fall on the other side of a rounding.
      const double bound = optimizer == Optimizer::adamw ? 1e-6 : 1e-4;
      for (const std::size_t step : {0u, 1u})
        CHECK(tests::near(goes_on.ranks[0][step].loss, whole.ranks[0][kBefore + step].loss, bound));
    }
}

TEST_CASE("states of another model, precision or optimizer are refused, and damaged ones") {
  const Golden gpt2("gpt2"), llama("llama");
  const Case made{Precision::bf16_mixed, 2, 3};
  const ScratchFolder folder;
  run(training_of(gpt2, made), 1, nullptr, &folder, 1);
  const auto check_said = [&](const Golden& golden, const Case& c, const std::string& part) {
    std::string message = "nothing";
    try {
      run(training_of(golden, c), 2, &folder);
    } catch (const Error& error) {
      CHECK(error.kind() == ErrorKind::bad_input);
      message = error.message();
    }
    CHECK_MESSAGE(message.find(part) != std::string::npos, message);
  };
  check_said(gpt2, {Precision::fp32, 2, 3},
             "is of --precision bf16-mixed, this run is of --precision fp32");
  check_said(gpt2, {Precision::bf16_mixed, 2, 3, 0, Optimizer::lion},
             "is of --optimizer adamw, this run is of --optimizer lion");
  check_said(llama, made, "is of another model: parameter 1 is transformer.wpe.weight");
  const std::filesystem::path shard =
      folder.path() / "step-00000001" / runtime::io::shard_name(1, 2);
  const std::string whole = plimsoll::test::bytes_of(shard);
  for (std::size_t at = 0; at < whole.size(); at += 1 + whole.size() / 12) {
    CAPTURE(at);
    std::string bytes = whole;
    bytes[at] = static_cast<char>(bytes[at] ^ 1);
    std::ofstream(shard, std::ios::binary) << bytes;
    check_said(gpt2, made, "shard-1-of-2.safetensors: damaged");
  }
  std::ofstream(shard, std::ios::binary) << whole.substr(0, whole.size() - 1);
  check_said(gpt2, made, "and was written with");
  std::filesystem::remove(shard);
  check_said(gpt2, made, "shard-1-of-2.safetensors: No such file");
}

}  // namespace
}  // namespace plimsoll::witness
