// fully_shard (FSDP2): each parameter is sharded by its rows.
#pragma once

#include <vector>

#include "planner/stacks/pytorch/wrappers/fsdp.h"
#include "planner/stacks/pytorch/wrappers/gradients.h"

namespace plimsoll::planner::pytorch {

class FullyShard final : public Fsdp {
 public:
  explicit FullyShard(Step& step) : Fsdp(step), whole_(step) {}

  TensorId begin(const ModuleNames& names, std::int64_t elements, bool adapter) override;
  bool keeps(std::int64_t) const override { return true; }
  void end(const ModuleNames& names, TensorId written) override;

  void size(Unit& unit) const override;
  void declare_states() override;
  bool keeps_last_layer() const override;
  void declare(Unit& unit) override;
  void declare_gathers(Unit& unit) override;
  void before_forward(Unit& unit, Ref previous) override;
  void gather_again(Unit& unit) override;
  void before_head_backward() override;
  void before_backward(Unit& unit) override;
  void after_backward(Unit& unit, Ref previous_reduce) override;
  void optimizer_step() override;
  std::vector<std::int64_t> held_by(std::int64_t rank) const override;

 private:
  void prefetch(Ref gathered, Ref cast);
  void prefetch_before(std::size_t run, std::size_t layer) override;
  void prefetch_in_checkpoint(Unit& unit) override;
  void add_messages(const Unit& unit, Messages& out) const override;
  SymInt shard_of(const Parameter& p) const;
  DType reduced_in(const Parameter& p) const;
  DType gathered_in(const Parameter& p) const;
  SymBytes cast_scratch(const Unit& unit) const;
  SymBytes copy_scratch(const Unit& unit) const;
  std::vector<Bytes> full_parts(const Unit& unit) const;
  TensorId tensor_of(const Unit& unit, const char* name, SymBytes bytes, models::Category category,
                     models::Stream stream);
  void convert_gradients(Unit& unit);
  void reduce_scatter(Unit& unit);
  void sum_over_sequence(Unit& unit);
  bool converts() const { return regime_.reduce != regime_.weight; }
  // Does the parameter come after those of its unit whose gradients were made before its own?
  bool is_last(const ModuleNames& names);
  int model_order(const ModuleNames& names) const;

  WholeGradients whole_;  // of micro-batches that are not reduced
};

}  // namespace plimsoll::planner::pytorch
