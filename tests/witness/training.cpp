#include "tests/witness/training.h"

#include "runtime/comm/threads.h"

namespace plimsoll::witness {

models::Strategy strategy_of(models::Precision precision, std::int64_t ranks, int zero) {
  models::Strategy strategy;
  strategy.stack = models::Stack::plimsoll;
  strategy.device = models::Device::cpu;
  strategy.precision = precision;
  strategy.gpus = ranks;
  strategy.data.zero = zero;
  return strategy;
}

std::vector<double> wide(const std::vector<float>& values) {
  return {values.begin(), values.end()};
}

Values named(const std::vector<runtime::Model::Values>& values) {
  Values out;
  for (const runtime::Model::Values& entry : values) out[entry.parameter->name] = entry.values;
  return out;
}

runtime::Tokens tokens_of(const Training& training, int rank) {
  return [&training, rank](std::int64_t step, std::int64_t micro, std::span<std::int32_t> ids,
                           std::span<std::int32_t> targets) {
    training.tokens(step, micro, rank, ids, targets);
  };
}

void on_ranks(const Training& training, const std::function<void(runtime::Trainer&)>& use) {
  const auto ranks = static_cast<int>(training.strategy.gpus);
  runtime::comm::run_ranks(ranks, [&](runtime::comm::Communicator& world) {
    runtime::TrainerOptions options{.strategy = training.strategy, .batch = training.batch};
    options.deterministic = training.strategy.deterministic;
    options.seed = training.seed;
    options.optimizer = training.optimizer;
    options.optimizer.kind = training.strategy.optimizer;
    options.loss_scaler = training.loss_scaler;
    options.memory.poison = true;
    check(training.model.numerics.has_value(), ErrorKind::unsupported, training.model.no_numerics);
    runtime::Trainer trainer(training.model, *training.model.numerics, options,
                             runtime::host_device(), world);
    trainer.load(training.weights);
    use(trainer);
  });
}

namespace {

std::vector<double> each(const Trained& trained, double runtime::StepResult::*field) {
  std::vector<double> values;
  for (const runtime::StepResult& step : trained.ranks.front()) values.push_back(step.*field);
  return values;
}

}  // namespace

std::vector<double> Trained::losses() const {
  return each(*this, &runtime::StepResult::loss);
}

std::vector<double> Trained::norms() const {
  return each(*this, &runtime::StepResult::grad_norm);
}

Trained trained(const Training& training, int steps) {
  Trained out;
  out.ranks.resize(static_cast<std::size_t>(training.strategy.gpus));
  on_ranks(training, [&](runtime::Trainer& trainer) {
    const int rank = trainer.worker().rank;
    for (int step = 0; step < steps; ++step)
      out.ranks[static_cast<std::size_t>(rank)].push_back(
          trainer.step(tokens_of(training, rank), training.learning_rate));
    const auto weights = trainer.model().whole(runtime::shard::State::weights);
    const auto masters = trainer.model().whole(runtime::shard::State::masters);
    if (rank != 0) return;
    out.weights = named(weights);
    out.masters = named(masters);
  });
  return out;
}

Gradients gradients(const Training& training) {
  Gradients out;
  on_ranks(training, [&](runtime::Trainer& trainer) {
    const int rank = trainer.worker().rank;
    const runtime::StepResult result = trainer.gradients_only(tokens_of(training, rank));
    const auto values = trainer.model().whole(runtime::shard::State::gradients);
    if (rank != 0) return;
    out = {result.loss, result.loss_scale, named(values)};
  });
  return out;
}

std::vector<double> logits(const Training& training, const std::vector<std::int32_t>& ids) {
  std::vector<double> out;
  on_ranks(training, [&](runtime::Trainer& trainer) {
    const std::vector<float> values = trainer.logits(ids);
    if (trainer.worker().rank == 0) out = wide(values);
  });
  return out;
}

}  // namespace plimsoll::witness
