// A decoder layer, forward and backward, node by node (models/block.h).
//
// Autograd runs a graph's nodes in the opposite order of their making (engine.cpp: the largest
// sequence number first), so the backward walks the forward's nodes from the last to the first;
// gradients of a value that several nodes read are added up as they come.
#pragma once

#include <map>
#include <span>
#include <vector>

#include "planner/stacks/pytorch/attention.h"
#include "planner/stacks/pytorch/block_plan.h"

namespace plimsoll::planner::pytorch {

class BlockWriter : public AttentionWriter {
 public:
  using AttentionWriter::AttentionWriter;

  // A layer's arguments: its input, cos, sin, mask, positions, ALiBi's, and what a policy keeps
  // behind the end of the recomputation. A checkpoint's frame holds them until its first node's
  // backward is done (that node is the last that refers to the frame).
  enum Held { kHeldMask = 3, kHeldPositions, kHeldAlibi };
  using Arguments = std::array<Ref, 8>;
  void hold(const Arguments& arguments, bool first_of_checkpoint) {
    held_ = arguments;
    first_ = first_of_checkpoint;
  }
  // The last layer of a checkpoint: its recomputation ends with the last tensor that autograd
  // saved (torch/utils/checkpoint.py, set_checkpoint_early_stop).
  void stop_early(bool stops) { stops_early_ = stops; }
  // What the forward of the layer that is recomputed next left; null: nothing is stored by op.
  void take_from(const LayerSaved* stored) { stored_ = stored; }
  // The rotary tables that every layer reads.
  void cast_tables(const BlockPlan& plan);  // with a layer's inputs, as fully_shard does
  void set_rotary(const ByWindow& cos, const ByWindow& sin) {
    cos_ = cos;
    sin_ = sin;
  }

  // As ModuleWriter's, by Liger where that is x's kernel (liger.cpp).
  void norm_forward(const ModuleNames& names, const NormPart& part, Ref input, const NormInput& x,
                    TapeSaved& saved, bool stops = false, Ref into = {});
  // Returns the input's gradient: where the result's was, `at.into`, or another tensor.
  Ref liger_norm_backward(const ModuleNames& names, const NormPart& part, const NormInput& x,
                          const TapeSaved& saved, Ref d_out, TensorId residual, const Place& at);

  // One layer: reads `input`, writes `output`.
  void forward(const BlockPlan& plan, Ref input, Ref output, LayerSaved& saved);
  // Reads d(output), writes d(input) (nothing where the input requires none).
  void backward(const BlockPlan& plan, Ref input, TensorId d_output, Ref d_input,
                const LayerSaved& saved);
  // Whose gradients are being written: a parameter's place in the order of named_parameters();
  // and whether it is a norm of the residual stream. Nothing outside of layers.
  std::optional<int> order_of(const ModuleNames& names) const;
  // Of the node whose backward is being written; none: it is no linear's.
  const LinearPart* linear() const { return node_ == nullptr ? nullptr : node_->linear; }
  bool in_stream_norm() const;
  DType joined_tables() const;  // of cosines and sines (rotary_joined.cpp)

 private:
  friend class CompiledBlock;  // compiled/compiled_block.h
  friend class LoopWriter;  // expert_loop.cpp
  friend class FusedAdapters;  // fused_adapters.cpp
  friend class UnslothAdapters;  // unsloth_adapters.cpp
  bool stops() const { return phase_ == Phase::recompute && stops_early_; }
  SymInt values_of(models::ValueId id) const, rows_of(models::ValueId id) const;
  DType dtype_of(models::ValueId id) const { return plan_->value(id).dtype; }
  bool ends(const models::Node& node) const {  // Is its result the layer's?
    return node.out[0] == plan_->layer->block->output();
  }
  bool grad_of(models::ValueId id) const { return plan_->value(id).grad; }
  // The frame's arguments, where this is a checkpoint's first layer and node.
  std::span<const Ref> frame() const;

  // Forward (block_forward.cpp): what the node at hand makes of `s`.
  Ref value(const LayerSaved& s, models::ValueId id) const;
  bool keeps_input(const NodePlan& at) const;
  NormInput norm_input(const NodePlan& at) const;
  void run(const NodePlan& at, Ref output, LayerSaved& s);
  void fused_forward_of(const NodePlan& at, LayerSaved& s);
  void fused_backward_of(const NodePlan& at, Ref d_input, const LayerSaved& s);
  void run_views(const NodePlan&at, LayerSaved&s), run_concatenate(const NodePlan&at, LayerSaved&s);
  void run_reshape(const NodePlan&, LayerSaved&), run_expand(const NodePlan&, LayerSaved&),
      run_rotary(const NodePlan&, LayerSaved&);
  TapePart rotary_part(const NodePlan& at, std::size_t i) const;  // of an operand
  static const OperandNames& operand(const NodePlan& at, std::size_t i);  // of a rotary node
  void run_attention(const NodePlan& at, bool takes, LayerSaved& s);
  void stop_at(const NodePlan& at, const LayerSaved& s);
  void save_values(const NodePlan& at, std::array<models::ValueId, 2> values, LayerSaved& s);
  void run_activation(const NodePlan& at, bool stops, LayerSaved& s);
  void run_function(const TapePart& part, const NodePlan& at, TapeSaved& saved, bool stops,
                    LayerSaved& s);
  void run_sequence(const NodePlan&, LayerSaved&), liger_rotary(const NodePlan&, LayerSaved&);
  void complex_rotary(const NodePlan&at, LayerSaved&s), complex_rotary_back(const NodePlan&at);
  void pair_rotary(const NodePlan&at, LayerSaved&s), pair_rotary_back(const NodePlan&at);
  void joined_rotary(const NodePlan&at, LayerSaved&s), joined_rotary_back(const NodePlan&at);
  std::pair<TapePart, TapeCounts> joined_rotary_of(const NodePlan& at, std::size_t i) const;
  void run_experts(const NodePlan&, bool stops, LayerSaved&);  // experts.cpp
  void run_loop(const NodePlan& at, bool stops, LayerSaved& s);
  void run_add(const NodePlan&, Ref, LayerSaved&), run_multiply(const NodePlan&, bool, LayerSaved&);
  void release(OpBuilder, const models::ValueList&, const LayerSaved&, const NodePlan* but = {});
  void stop_behind(std::size_t node, const LayerSaved&s), leave_attention(const LayerSaved&s);
  AttentionInput attention_input(const NodePlan& at, const LayerSaved& s) const;

  // Backward: from the gradients of the node's results to those of its operands.
  void back(const NodePlan& at, Ref d_input, const LayerSaved& s);
  Place place_of(const NodePlan& at, Ref d_input, const LayerSaved& s) const;
  void norm_back(const NodePlan& at, Ref d_input, const LayerSaved& s);
  void split_back(const NodePlan&at), slice_back(const NodePlan&), sequence_back(const NodePlan&),
      expand_back(const NodePlan&), add_back(const NodePlan&), concatenate_back(const NodePlan&),
      rotary_back(const NodePlan&);
  void attention_back(const NodePlan&, const LayerSaved&),
      activation_back(const NodePlan&, const LayerSaved&);
  void multiply_back(const NodePlan& at, const LayerSaved& s);
  void stream_norm_back(const NodePlan& at, const LayerSaved& s);
  void liger_norm_back(const NodePlan& at, Ref d_input, const LayerSaved& s);
  void liger_rotary_back(const NodePlan&at), liger_gate_back(const NodePlan&at, const LayerSaved&s);
  void experts_back(const NodePlan&, const LayerSaved&),
      loop_back(const NodePlan&, const LayerSaved&);
  bool shared(models::ValueId id) const;  // another value's backward is still to read it
  TensorId add_apart(const NodePlan& at, TensorId a, TensorId b, Ref into);
  TensorId laid_out(models::ValueId id, bool for_gemm = false);  // a gradient, as a GEMM reads it
  Ref gradient_of(models::ValueId id);
  Sum& gradient(models::ValueId id) { return gradients_[static_cast<std::size_t>(id)]; }

  std::array<Ref, 3> rotary_operands(TensorId x) const;  // with the tables
  TapeCounts rotary_counts(models::ValueId id) const { return {values_of(id), values_of(id) / 2}; }
  void experts_work(const NodePlan& at, bool summed);
  TapePart experts_part(const NodePlan& at) const;
  TapeCounts experts_counts(const NodePlan& at) const;
  void count_adapters(const ExpertsPart& part, TapeCounts& counts) const;
  SymInt visits(std::int64_t expert) const;  // expert_loop.cpp
  // A linear of one expert reads the rows of its visitors; returns what all others read.
  Tokens visiting(const NodePlan& at);
  DType rotary_dtype() const;

  const BlockPlan* plan_ = nullptr;
  const NodePlan* node_ = nullptr;  // whose backward is being written
  Ref input_, d_input_, d_output_;
  std::vector<Sum> gradients_;  // by value
  Arguments held_{};
  bool first_ = true, stops_early_ = false;
  const LayerSaved* stored_ = nullptr;
  ByWindow cos_{kNoTensor, kNoTensor}, sin_{kNoTensor, kNoTensor};
  std::map<const BlockPlan*, std::array<TensorId, 2>> own_tables_;  // that were cast
};

}  // namespace plimsoll::planner::pytorch
