// Adapters of a packed base that one autograd function computes with it.
#pragma once

#include "planner/stacks/pytorch/block_writer.h"

namespace plimsoll::planner::pytorch {

// Those of `first` and of the linears behind it (NodePlan::fused).
class FusedAdapters {
 public:
  FusedAdapters(BlockWriter& writer, const NodePlan& first)
      : w_(writer), first_(first), group_(&first, first.fused) {}
  void forward(LayerSaved& s);
  void backward(Ref d_input, const LayerSaved& s);

 private:
  struct Gradients {
    TensorId a = kNoTensor, b = kNoTensor;
  };
  TensorId unpacked_weight(const NodePlan& at);
  TensorId low_adapter(const ModuleNames& names, std::int64_t values);
  TensorId scaled_adapter(const ModuleNames& names, const char* scaled, std::int64_t values);
  void forward_of(const NodePlan& at, Ref x, TensorId weight, LinearSaved& s);
  Gradients adapter_back(const NodePlan& at, Ref dropped, TensorId d);
  void input_back(const NodePlan& at, Ref dropped, TensorId d, Ref d_x, Ref overwritten,
                  bool first);
  void gradients(std::span<Gradients> made, const LayerSaved& s, Ref x);

  BlockWriter& w_;
  const NodePlan& first_;
  std::span<const NodePlan> group_;
};

}  // namespace plimsoll::planner::pytorch
