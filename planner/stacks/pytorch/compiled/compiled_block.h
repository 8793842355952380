// A compiled layer's forward and backward as ops of the step, beside those of the layers that
// BlockWriter runs node by node.
#pragma once

#include "planner/stacks/pytorch/block_writer.h"
#include "planner/stacks/pytorch/compiled/layer.h"

namespace plimsoll::planner::pytorch {

class CompiledBlock {
 public:
  explicit CompiledBlock(BlockWriter& writer) : w_(writer) {}

  compiled::Layer compile(const BlockPlan& plan, const models::Recompute& recompute) const;
  // Reads `input`, writes `output`; `saved`: by Layer::saved.
  void forward(const compiled::Layer& layer, const BlockPlan& plan, Ref input, Ref output,
               std::vector<TensorId>& saved);
  // Reads d(output), writes d(input) (nothing where the input requires none).
  void backward(const compiled::Layer& layer, const BlockPlan& plan, Ref input, TensorId d_output,
                Ref d_input, const std::vector<TensorId>& saved);

 private:
  void set_inputs(const compiled::Layer& layer, Ref input);
  void make(const compiled::Kernel& kernel, const std::vector<bool>& kept);
  void run(const compiled::Kernel& kernel);
  void begin_gradients(const compiled::Kernel& kernel);
  void return_gradients(TensorId d_output);
  Ref& at(compiled::NodeId id) { return buffers_[static_cast<std::size_t>(id)]; }
  const compiled::JointGraph& graph() const { return layer_->region.graph; }

  BlockWriter& w_;
  const compiled::Layer* layer_ = nullptr;
  std::vector<Ref> buffers_;  // by node
  std::vector<TensorId> gradients_;  // by Region::weights
};

}  // namespace plimsoll::planner::pytorch
