// Every rank holds the whole model: one GPU, DistributedDataParallel, ZeroRedundancyOptimizer.
#pragma once

#include <optional>
#include <vector>

#include "planner/stacks/pytorch/wrappers/gradients.h"
#include "planner/stacks/pytorch/wrappers/torch_wrapper.h"

namespace plimsoll::planner::pytorch {

class Replicated final : public TorchWrapper {
 public:
  explicit Replicated(Step& step);

  TensorId begin(const ModuleNames& names, std::int64_t elements, bool adapter) override;
  bool keeps(std::int64_t elements) const override { return gradients_.keeps(elements); }
  bool acts() const override {
    return strategy_.optimizer_in_backward || strategy_.offload.gradients;
  }
  void end(const ModuleNames& names, TensorId written) override;

  void declare_states() override;
  void before_forward(Unit& unit, Ref previous) override;
  void before_layer_backward(std::size_t run, std::size_t layer) override;
  void end_backward() override;
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
  Bytes packed_buffers() const;
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
  // Of an optimizer that steps a parameter when the next one's gradient is there
  // (steps_behind.cpp): what waits; the last gradient of each instance of a run's layers, which the
  // instance before it in the model steps; how many the layer has whose backward it is, how many
  // of these are begun, and how many have arrived.
  struct Waiting {
    Ref gradient;
    models::SteppedTensor parameter;
  };
  void step_behind(const Begun&arrived), copy_to_host(const Begun&arrived);
  void say_extents(const ModuleNames& names, models::SteppedTensor& parameter) const;
  std::optional<Waiting> waiting_;
  TensorId carried_ = kNoTensor;
  std::size_t in_layer_ = 0, begun_in_layer_ = 0, arrived_in_layer_ = 0;
  bool last_of_instance_ = false;
  bool reduces_, partitions_;
  WholeGradients gradients_;
  TensorId first_bucket_ = kNoTensor, last_bucket_ = kNoTensor;
  std::vector<Bytes> shares_, partition_;  // bytes of each rank's; and this rank's, one by one
};

}  // namespace plimsoll::planner::pytorch
