// The step under FullyShardedDataParallel (FSDP1) with use_orig_params, as Accelerate and
// Transformers' Trainer wrap a model where nothing else is asked for.
#pragma once

#include "planner/stacks/pytorch/step.h"

namespace plimsoll::planner::pytorch {

class FlatStepWriter final : public StepWriter {
 public:
  using StepWriter::StepWriter;
  TensorId begin(const ModuleNames& names, std::int64_t elements, bool adapter) override;
  bool keeps() const override { return true; }
  void end(const ModuleNames& names, TensorId written) override;
  void add_collectives(std::vector<reports::Collective>& out) const override;
  void add_start(Start& start) const override;

 protected:
  void size_unit(Unit& unit, const std::vector<Parameter>& parameters,
                 models::GroupId group) override;
  void declare_unit(Unit& unit, std::int64_t copies) override;
  void declare_unit_tensors(Unit& unit) override;
  DType buffer_dtype() const override;
  void prefetch_last_layer() override;
  void prefetch_before(std::size_t run) override;
  void gather_forward(Unit& unit, Ref previous) override;
  void copy_out_backward(Unit&) override {}
  void post_backward(Unit& unit, Ref previous_reduce) override;
  void recompute() override;
  bool reentrant() const override;
  std::vector<TensorId> square_roots() override;
  Bytes for_loop_scratch() const override;

 private:
  bool checkpoints_around() const;
  bool reshards() const { return strategy_.data.zero >= 3; }
  Bytes stored_bytes(std::int64_t elements) const;
  void prefetch_flat(Ref full, Ref cast);
  void reduce_scatter(Unit& unit);
  void leave_checkpoint(const Unit& unit);
};

}  // namespace plimsoll::planner::pytorch
