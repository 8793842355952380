// The optimizer's options, the norm of all gradients, and the scale of the loss.
#pragma once

#include <optional>
#include <span>

#include "models/optimizers.h"
#include "models/run_spec.h"
#include "runtime/scalars.h"
#include "runtime/worker.h"

namespace plimsoll::runtime::comm {
class Communicator;
}
namespace plimsoll::runtime::shard {
class Unit;
}

namespace plimsoll::runtime {

// torch's defaults (torch.optim.AdamW, SGD), and the usual clipping.
struct OptimizerOptions {
  models::Optimizer kind = models::Optimizer::adamw;
  std::optional<float> beta1, beta2;  // of those that have them; the optimizer's own where absent
  float eps = 1e-8f;  // AdamW
  float momentum = 0.9f;  // momentum
  float weight_decay = 0.01f;
  float max_norm = 1;  // 0: no clipping
};

// Error{unsupported}: an optimizer that this runtime has not.
const models::OptimizerRule& runtime_rule(models::Optimizer kind);

// What one step of the optimizer needs beside the tensors.
struct OptimizerStep {
  OptimizerOptions options;
  float learning_rate = 1e-3f;
  std::int64_t number = 1;  // counts from 1 the steps that were not skipped (bias correction)
  ConstTensorView factor, overflow;  // Scalars; none: 1, and nothing is skipped
};

// What is updated in place: this rank's elements of a part. `first_element`: global index of the
// first, for stochastic rounding, which is keyed by (worker.seed, worker.step, index).
struct OptimizerOperands {
  TensorView weight, master, first_moment, second_moment;
  TensorView first_scales, second_scales;  // of moments in 8 bits
  ConstTensorView gradient;
  std::int64_t first_element = 0;
};
void take_step(const Worker& worker, const kernels::KernelTable& kernels, const OptimizerStep& step,
               const OptimizerOperands& operands);

// Bytes of workspace that gradient_norm needs: one fp64 for each decisions::kNormChunk elements of
// a tensor, and one for each tensor.
Bytes gradient_norm_workspace(std::span<shard::Unit* const> units);

// Inside the op decisions::kGradientNorm, when all reductions are taken. Squares are summed in fp64
// chunk by chunk of each whole tensor, so that all stages of equally many ranks give the same bits.
// Sets squares, norm, factor and overflow. `shards`: the sharding group.
void gradient_norm(Worker& worker, std::span<shard::Unit* const> units, comm::Communicator& shards,
                   float max_norm, float loss_scale, const Scalars& scalars);

// Dynamic loss scaling for fp16: a factor on the loss keeps small gradients above 2^-24. Defaults
// of torch.amp.GradScaler.
class LossScaler {
 public:
  struct Options {
    double initial = 65536, growth = 2, backoff = 0.5;
    std::int64_t growth_interval = 2000;  // good steps in a row
  };
  // `on` false (no loss_scaling in the regime): the scale is 1 for ever.
  explicit LossScaler(bool on) : LossScaler(on, Options()) {}
  LossScaler(bool on, const Options& options);

  double scale() const { return scale_; }
  std::int64_t good_steps() const { return good_; }  // since the last change
  void update(bool overflow);
  void restore(double scale, std::int64_t good_steps);  // from a training checkpoint

 private:
  bool on_;
  Options options_;
  double scale_;
  std::int64_t good_ = 0;
};

}  // namespace plimsoll::runtime
