// Every rank holds the whole model: one GPU, DistributedDataParallel, ZeroRedundancyOptimizer.
#pragma once

#include <vector>

#include "planner/stacks/pytorch/wrappers/gradients.h"
#include "planner/stacks/pytorch/wrappers/torch_wrapper.h"

namespace plimsoll::planner::pytorch {

class Replicated final : public TorchWrapper {
 public:
  explicit Replicated(Step& step);

  TensorId begin(const ModuleNames& names, std::int64_t elements, bool adapter) override;
  bool keeps() const override { return gradients_.keeps(); }
  bool acts() const override { return strategy_.optimizer_in_backward; }
  void end(const ModuleNames& names, TensorId written) override;

  void declare_states() override;
  void before_forward(Unit& unit, Ref previous) override;
  void optimizer_step() override;
  void add_start(Start& start) const override;
  std::int64_t group() const override {
    return partitions_ ? models::decisions::mesh_of(strategy_).data().ranks : 1;
  }
  std::vector<std::int64_t> held_by(std::int64_t rank) const override;
  void write_messages(Messages& out) override;

 private:
  // DDP's, of gradients (ddp.cpp). Where the parameter stands that fills it.
  struct Bucket {
    Bytes bytes;
    Message::Part part = Message::Part::front;
  };
  std::vector<Bucket> buckets() const;
  void declare_buckets();
  // ZeroRedundancyOptimizer's (zero_redundancy.cpp): whole parameters to ranks; the rank that is
  // written is the one that has most, unless one is asked for.
  void choose_partition(), declare_partition();
  std::vector<Bytes> partition_blocks() const;

  struct Begun {  // a gradient before its step, where that is in the backward
    TensorId gradient;
    models::SteppedTensor parameter;
  };
  const LinearPart* linear_of(const ModuleNames& names) const;
  std::vector<Begun> begun_;
  bool reduces_, partitions_;
  WholeGradients gradients_;
  TensorId first_bucket_ = kNoTensor, last_bucket_ = kNoTensor;
  std::vector<Bytes> shares_, partition_;  // bytes of each rank's; and this rank's, one by one
};

}  // namespace plimsoll::planner::pytorch
