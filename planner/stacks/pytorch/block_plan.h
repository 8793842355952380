// A block (models/block.h) as eager PyTorch runs it for one strategy: what requires a gradient, in
// which dtype each value is, and what everything is called. Of any batch.
#pragma once

#include <vector>

#include "planner/model_parts.h"
#include "planner/stacks/pytorch/names.h"
#include "planner/stacks/pytorch/regime.h"

namespace plimsoll::planner::pytorch {

struct ValuePlan {
  std::int64_t width = 0;  // elements a token
  DType dtype = DType::fp32;
  bool grad = false;  // requires one
  bool stream = false;  // the residual stream
  bool of_part = false;  // of the rank's part of each sequence
  bool heads_first = false;  // stored as [batch, heads, s, d]
  int expert = -1;  // its rows are those of this expert's visitors; none: a row for each token
  const char* grad_name = "";
};

// Queries, keys and values.
inline constexpr std::size_t kMostFused = 3;

struct NodePlan {
  const models::Node* node = nullptr;
  bool grad = false;  // its backward runs
  bool stored = false;  // a recomputation by op takes what the forward made
  std::size_t place = 0;  // among the saved tensors of its kind
  NormKernel kernel = NormKernel::eager;  // of a norm
  // Of a GEMM whose first factor is activated in the same kernel: what goes in.
  models::ValueId gate = models::kNoValue, up = models::kNoValue;
  // Adapters that one function computes (fused_adapters.cpp, unsloth_adapters.cpp): of so many
  // linears from this one on; `follows`: an earlier node's does.
  std::size_t fused = 0;
  bool follows = false;
  const LinearPart* linear = nullptr;
  const NormPart* norm = nullptr;
  const ExpertsPart* experts = nullptr;
  // By kind.
  const LinearNames* linear_names = nullptr;
  const ModuleNames* norm_names = nullptr;
  const AttentionNames* attention_names = nullptr;
  const OperandNames* operand_names = nullptr;
  const ExpertsNames* experts_names = nullptr;
  const SequenceNames* sequence_names = nullptr;
  const NodeNames* names = nullptr;

  // As the last node that saves anything: in front of its operator, not behind an adapter's, nor
  // behind a function of Python's, which saves when it has run.
  bool ends_recomputation() const {
    return linear == nullptr ||
           (!linear->float8 && (!linear->adapted() || linear->adapter == Adapter::ia3_input));
  }
};

struct BlockPlan {
  // `part` stays where it is as long as the plan is used.
  BlockPlan(const LayerPart& part, const Regime& regime, DType input, bool input_grad);

  const LayerPart* layer;
  std::vector<NodePlan> nodes;
  std::vector<ValuePlan> values;
  // Recomputation ends with the last node that saves anything (torch/utils/checkpoint.py,
  // set_checkpoint_early_stop); the first one's backward is the last to refer to the frame.
  std::size_t last_save = 0, first_save = 0;
  std::size_t attentions = 0, activations = 0, dropouts = 0;

  const ValuePlan& value(models::ValueId id) const { return values[static_cast<std::size_t>(id)]; }
  std::size_t place_of(const NodePlan& at) const {
    return static_cast<std::size_t>(&at - nodes.data());
  }
  bool sliding = false;
  bool sums_apart = false;  // KernelPatch's
  bool input_grad() const { return values[models::kBlockInput].grad; }
  // The first node is a norm that turns its result's gradient into the layer's input's, and this
  // one is the last to add to it.
  bool ends_in_place(const NodePlan& at) const;
  void store_by_op(const models::Recompute& recompute);

 private:
  bool joins(NodePlan& at);
  void fuse_adapters(), fuse_unsloth();
  std::vector<models::ValueId> gates_;  // by what their activation would make
};

}  // namespace plimsoll::planner::pytorch
