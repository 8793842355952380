// The whole training step of one rank under eager PyTorch: DDP, ZeroRedundancyOptimizer or FSDP2.
#pragma once

#include <vector>

#include "planner/model_parts.h"
#include "planner/stacks/pytorch/layer_writer.h"
#include "reports/record.h"

namespace plimsoll::planner::pytorch {

enum class DataParallelism { single, ddp, zero_redundancy, fsdp2 };

// A set of parameters that are handled together: an FSDP unit (one fully_shard'ed module).
struct Unit {
  const std::vector<Parameter>* parameters = nullptr;
  models::GroupId group = models::kNoGroup;
  Bytes gathered;  // all-gather output: one flat buffer
  Bytes full;  // parameters copied out of it, one tensor each
  Bytes cast;  // flat low-precision copy of the local shards
  Bytes reduce_input;  // reduce-scatter input, padded
  Bytes reduce_output;
  Bytes state;  // one optimizer state of its trained parameters, as this rank steps them
  Bytes shard_grad_cast;  // the shard's gradient in the stored dtype, where that differs
  TensorId gather_forward = kNoTensor, gather_backward = kNoTensor;
  TensorId full_forward = kNoTensor, full_backward = kNoTensor;
  TensorId reduce_in = kNoTensor;
  TensorId shard_grad = kNoTensor;  // lives until zero_grad
  std::vector<TensorId> grads;  // written by this micro-batch, dead after the unit's backward
  std::vector<TensorId> kept;  // live until zero_grad, or until the last micro-batch's reduction
  std::size_t next = 0;  // the kept gradient that the next one is added to
};

class StepWriter final : public GradientSink {
 public:
  StepWriter(models::StepProgram& program, const ModelParts& parts,
             const models::Strategy& strategy, const models::Batch& batch, const Rules& rules);

  // The steady-state step (optimizer states exist). Throws Error{unsupported}.
  void write();

  DataParallelism parallelism() const { return parallelism_; }
  const Regime& regime() const { return regime_; }
  // Model states of this rank at the end of backward.
  const reports::States& states() const { return states_; }
  // Of one optimizer step; call after write().
  void add_collectives(std::vector<reports::Collective>& out) const;

  TensorId begin(const ModuleNames& names, std::int64_t elements, bool adapter) override;
  void end(const ModuleNames& names, TensorId written) override;

 private:
  // A run of equal layers; `stride` of them make one instance of the group.
  struct Run {
    const LayerRun* layers = nullptr;
    models::GroupId group = models::kNoGroup;
    TensorId out = kNoTensor, d_out = kNoTensor;  // residual stream after an instance, its gradient
    std::vector<TensorId> inner, d_inner;  // the same between an instance's layers
    std::vector<LayerSaved> saved, kept;
    std::vector<TensorId> recomputed;
    std::vector<Unit> units;
    std::int64_t count = 0;  // instances
    std::size_t stride() const { return units.size(); }
  };

  // States and units (states.cpp).
  void plan_units();
  void size_unit(Unit& unit, const std::vector<Parameter>& parameters, models::GroupId group);
  void declare_states();
  void declare_unit_tensors(Unit& unit);
  void declare_unit(Unit& unit, std::int64_t copies);
  Bytes local(const Parameter& p, DType dtype) const;
  DType stored(const Parameter& p) const;
  void add_runs();
  Bytes largest_partition() const;

  // Forward and backward of one micro-batch (step.cpp).
  void micro_batch(std::int64_t index, std::int64_t times);
  void layers_forward(std::size_t run);
  void layers_backward(std::size_t run);
  void recompute(std::size_t run);
  Ref input_of(std::size_t run, std::size_t layer) const;
  Ref input_gradient_of(std::size_t run, std::size_t layer) const;
  bool recomputes() const { return strategy_.recompute.kind != models::RecomputeKind::none; }

  // The ends of the model (ends.cpp).
  void embed();
  void finish_forward();
  void loss_forward();
  void release_cached_casts();
  void loss_backward();
  void embedding_backward();
  TensorId dropout_embedding(std::int64_t values, DType dtype);

  // FSDP2 (fsdp2.cpp). `run` == runs_.size() is the tail, -1 the embedding.
  Ref unit_tensor(TensorId Unit::*tensor, std::size_t run, std::size_t layer, int step) const;
  void gather_forward(Unit& unit, Ref previous);
  void reshard_after_forward(Unit& unit);
  void copy_out_backward(Unit& unit);
  void prefetch(const Unit& next, Ref target);
  void post_backward(Unit& unit, Ref previous_reduce);

  // optimizer.cpp
  void optimizer_step();
  std::vector<TensorId> square_roots();

  ProgramBuilder b_;
  const ModelParts& parts_;
  const models::Decoder& d_;
  models::Strategy strategy_;
  models::Batch batch_;
  Rules rules_;
  Tokens tokens_;
  DataParallelism parallelism_;
  Regime regime_;
  std::int64_t shards_ = 1;  // ranks that a parameter is split over
  LayerWriter layer_;
  std::vector<Run> runs_;
  Unit embedding_, tail_;
  Unit* unit_ = nullptr;  // whose gradients are being written
  std::int64_t micro_ = 0, micros_ = 1;  // which micro-batch is written, of how many distinct ones

  TensorId embedded_ = kNoTensor, positions_embedded_ = kNoTensor, hidden_ = kNoTensor;
  TensorId cos_ = kNoTensor, sin_ = kNoTensor, position_ids_ = kNoTensor;
  TensorId embedding_mask_ = kNoTensor, d_embedded_ = kNoTensor;
  NormSaved final_norm_;
  LinearSaved head_;
  TensorId log_probabilities_ = kNoTensor, targets_ = kNoTensor, loss_ = kNoTensor,
           total_weight_ = kNoTensor, seed_ = kNoTensor;
  std::int64_t times_ = 1;
  reports::States states_;
  Bytes largest_parameter_, partition_;
};

}  // namespace plimsoll::planner::pytorch
