// Training runs of our own, and what came of them, to be compared with others' or with each other.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "models/model_spec.h"
#include "models/run_spec.h"
#include "runtime/trainer.h"

namespace plimsoll::witness {

// Tokens of one rank's micro-batch: ids and targets [sequences · length].
using RankTokens =
    std::function<void(std::int64_t step, std::int64_t micro, std::int64_t rank,
                       std::span<std::int32_t> ids, std::span<std::int32_t> targets)>;

// Ranks are threads, memory is poisoned. strategy.deterministic counts.
struct Training {
  models::ModelSpec model;
  models::Strategy strategy;
  models::Batch batch;
  runtime::OptimizerOptions optimizer;
  float learning_rate = 1e-3f;
  runtime::LossScaler::Options loss_scaler;
  std::uint64_t seed = 0;
  runtime::ReadParameter weights;
  RankTokens tokens;
};

models::Strategy strategy_of(models::Precision precision, std::int64_t ranks = 1, int zero = 0);

// Whole tensors by their name in the checkpoint (an adapter's: in PEFT's file).
using Values = std::map<std::string, std::vector<float>>;
std::vector<double> wide(const std::vector<float>& values);

struct Trained {
  std::vector<std::vector<runtime::StepResult>> ranks;  // [rank][step]
  Values weights, masters;  // after the last step; of what has none, nothing
  std::vector<double> losses() const;  // rank 0's
  std::vector<double> norms() const;
};
Trained trained(const Training& training, int steps);

struct Gradients {
  double loss = 0;
  double loss_scale = 1;  // contained in the values
  Values values;
};
Gradients gradients(const Training& training);  // of step 0's batch

// Of one micro-batch, on every rank; rank 0's.
std::vector<double> logits(const Training& training, const std::vector<std::int32_t>& ids);

// Runs `use` on every rank with its trainer, which has its weights.
void on_ranks(const Training& training, const std::function<void(runtime::Trainer&)>& use);
runtime::Tokens tokens_of(const Training& training, int rank);
Values named(const std::vector<runtime::Model::Values>& values);

}  // namespace plimsoll::witness
