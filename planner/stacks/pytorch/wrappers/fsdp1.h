// FullyShardedDataParallel (FSDP1) with use_orig_params, as Accelerate and Transformers' Trainer
// wrap a model where nothing else is asked for: a unit is one flat parameter.
#pragma once

#include <vector>

#include "planner/stacks/pytorch/checkpoints.h"
#include "planner/stacks/pytorch/wrappers/fsdp.h"

namespace plimsoll::planner::pytorch {

class FlatParameters final : public Fsdp {
 public:
  FlatParameters(Step& step, Checkpoints& checkpoints) : Fsdp(step), checkpoints_(checkpoints) {}

  TensorId begin(const ModuleNames& names, std::int64_t elements, bool adapter) override;
  bool keeps(std::int64_t) const override { return true; }
  void end(const ModuleNames& names, TensorId written) override;

  void size(Unit& unit) const override;
  void declare_states() override;
  DType buffer_dtype() const override;
  void declare(Unit& unit) override;
  void before_forward(Unit& unit, Ref previous) override;
  void before_head_backward() override;
  void before_backward(Unit& unit) override;
  void before_recompute(Unit& unit) override;
  void after_recompute(Unit& unit) override;
  void after_backward(Unit& unit, Ref previous_reduce) override;
  void end_backward() override;
  bool leaves_checkpoints() const override { return true; }
  void optimizer_step() override;
  void add_start(Start& start) const override;
  std::vector<std::int64_t> held_by(std::int64_t rank) const override;

 private:
  bool checkpoints_around() const;
  models::Residency kept_gradient() const;
  void send_unit(const Unit& unit, DType loaded, Start& start) const;
  bool reshards() const { return strategy_.data.zero >= 3; }
  // One flat parameter: what it takes whole and on one rank, as seen by modules, as stored, and
  // as its gradient is reduced.
  struct Flat {
    Bytes full, cast, shard, reduce_input, reduce_output, shard_grad_cast;
  };
  Flat flat_of(std::int64_t elements, DType seen, DType stored, DType reduce) const;
  Flat adapter_of(std::int64_t elements) const;
  struct Range {
    std::int64_t begin = 0, end = 0;  // elements
    bool embedding = false;
  };
  using Ranges = std::vector<Range>;
  Ranges ranges_of(const std::vector<Parameter>& parameters, models::GroupId group) const;
  std::vector<models::SteppedTensor> parts_of(const Ranges& ranges, std::int64_t rank) const;
  Bytes largest_part(const Unit& unit) const;
  bool ignores_adapters() const;
  DType adapter_stored() const;
  void size_adapters(Unit& unit) const;
  void declare_unit(Unit& unit, std::int64_t copies);
  void declare_on_host(const Unit& unit, std::int64_t copies);
  void declare_adapter_tensors(Unit& unit);
  void reduce_adapter(TensorId grad), keep_or_reduce_adapter(TensorId grad);
  void prefetch_flat(Ref full, Ref cast);
  void prefetch_before(std::size_t run, std::size_t layer) override;
  void prefetch_unit_before(std::size_t run, std::size_t layer);
  void reduce_scatter(Unit& unit);
  std::vector<TensorId> lists();
  std::vector<models::SteppedTensor> stepped(std::int64_t most_layers) const;
  void add_messages(const Unit& unit, Messages& out) const override;

  Checkpoints& checkpoints_;
  TensorId adapter_grad_ = kNoTensor;  // the one that was begun last
  std::int64_t adapter_elements_ = 0;
  std::int64_t adapters_reduced_ = 0;  // of the layer whose backward is written
};

}  // namespace plimsoll::planner::pytorch
