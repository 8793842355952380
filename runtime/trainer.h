// Trains a model on one rank, in the order of models/decisions/step.h.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "models/model_spec.h"
#include "models/numerics.h"
#include "models/run_spec.h"
#include "runtime/comm/communicator.h"
#include "runtime/model.h"
#include "runtime/optimizer.h"

namespace plimsoll::runtime {

// Tokens of micro-batch `micro` of step `step` on this rank: ids and targets [sequences · length].
using Tokens = std::function<void(std::int64_t step, std::int64_t micro,
                                  std::span<std::int32_t> ids, std::span<std::int32_t> targets)>;

struct TrainerOptions {
  models::Strategy strategy;
  models::Batch batch;
  // All stages sum in the same order at the same moments, and agree bit for bit.
  bool deterministic = false;
  std::uint64_t seed = 0;
  OptimizerOptions optimizer;
  LossScaler::Options loss_scaler;
  MemoryOptions memory;
};

struct StepResult {
  double loss = 0;  // mean over the tokens that count, of all ranks
  double grad_norm = 0;  // of all gradients, before clipping; stepped with in the backward: 0
  double loss_scale = 1;
  bool skipped = false;  // an overflow: the optimizer changed nothing
  double seconds = 0;
  std::int64_t tokens = 0;  // of all ranks
  StepRecord memory;
  StepRecord host_memory;  // of the host's, where states are offloaded to it
};

// What a training checkpoint keeps beside the tensors.
struct TrainerCounts {
  std::int64_t steps = 0;  // the skipped ones too
  std::int64_t taken = 0;  // by the optimizer
  double loss_scale = 1;
  std::int64_t good_steps = 0;  // since the scale has changed
  bool operator==(const TrainerCounts&) const = default;
};

class Trainer {
 public:
  // `world`: all ranks. Everything that stays between steps is allocated here.
  Trainer(const models::ModelSpec& model, const models::Numerics& numerics,
          const TrainerOptions& options, Device& device, comm::Communicator& world);
  ~Trainer();

  void load(const ReadParameter& read, const ReadPacked& packed = {});
  // One optimizer step; `learning_rate` is this step's. Error{out_of_memory}, here and above, also
  // where the host lacks memory beside the tensors: a step that failed is not to be repeated.
  StepResult step(const Tokens& tokens, float learning_rate);

  // As a step, but before the optimizer: gradients stay for `model().whole(State::gradients)`, the
  // loss scale in them, until `drop_gradients`; before that no step may follow. For tests.
  StepResult gradients_only(const Tokens& tokens);
  void drop_gradients();
  // [tokens, vocabulary] of one micro-batch, in fp32; all ranks call it together. For tests.
  std::vector<float> logits(std::span<const std::int32_t> ids);

  Model& model() { return *model_; }
  const Worker& worker() const { return *worker_; }
  std::int64_t steps_taken() const { return taken_; }
  // Optimizer states that were loaded have made so many steps (bias correction).
  void set_steps_taken(std::int64_t steps) { taken_ = steps; }
  // Between steps; the next one is number `steps` (from 0).
  TrainerCounts counts() const;
  void restore(const TrainerCounts& counts);
  comm::Communicator& world() { return world_; }
  // Ranks that share one copy of the states, and those that hold the same piece as this one.
  const comm::Communicator& shards() const { return *shards_; }
  const comm::Communicator& replicas() const { return *replicas_; }
  const models::Strategy& strategy() const { return options_.strategy; }

 private:
  struct HostBatch {
    std::vector<std::int32_t> ids, targets;
  };
  void build(const models::ModelSpec& model, const models::Numerics& numerics, Device& device);
  void allocate_staging();
  std::int64_t read_batches(const Tokens& tokens);
  void place(const HostBatch& batch);
  void optimize(float learning_rate);
  OptimizerStep next_step(float learning_rate) const;
  void read_scalars(bool optimizes, StepResult& result);
  StepResult run(const Tokens& tokens, float learning_rate, bool optimizes);

  TrainerOptions options_;
  comm::Communicator& world_;
  std::unique_ptr<comm::Communicator> shards_, replicas_;
  std::unique_ptr<Worker> worker_;
  std::unique_ptr<Model> model_;
  Tensor ids_, targets_, scalar_block_, staging_, host_scalar_block_;
  std::unique_ptr<Scalars> scalars_;
  std::unique_ptr<LossScaler> scaler_;
  std::vector<HostBatch> batches_;
  std::int64_t step_ = 0, taken_ = 0;
};

}  // namespace plimsoll::runtime
