// Unsloth's functions of adapters: a projection with its LoRA, three of one input, or a whole MLP.
#pragma once

#include <vector>

#include "planner/stacks/pytorch/block_writer.h"

namespace plimsoll::planner::pytorch {

// Those of `first` and of the linears behind it (NodePlan::fused).
class UnslothAdapters {
 public:
  UnslothAdapters(BlockWriter& writer, const NodePlan& first);
  void forward(LayerSaved& s);
  void backward(const LayerSaved& s);

 private:
  // A and B in the input's dtype, and their gradients, of one linear.
  struct Low {
    TensorId a = kNoTensor, b = kNoTensor, d_a = kNoTensor, d_b = kNoTensor;
  };
  struct Pair {  // of tokens: what the linear read, and its result's gradient
    Ref x, d;
  };
  bool is_mlp() const { return product_ != nullptr; }
  SymInt tokens() const { return w_.tokens_.total(); }
  TensorId low(const ModuleNames& names, std::int64_t values);
  TensorId unpacked(const NodePlan& at);
  void unpack_in_place(const NodePlan& at);
  TensorId times(const ModuleNames& names, Ref left, TensorId right, const NodePlan& at,
                 std::int64_t of);
  void add(const char* name, Ref sum, TensorId low, TensorId factor, const Gemm& size);
  void multiply(const NodePlan& at, Ref x, LinearSaved& s);
  void cast_adapters();
  void make_gradients(std::size_t i);
  void gradients_of(std::size_t i, const Pair& pair);
  void input_gradient(std::size_t i, Ref d, Ref d_x, bool first);
  void widen_gradients(const LayerSaved& s);
  Ref result_gradient(std::size_t i) const;
  void mlp_backward(const LayerSaved& s);
  void linears_backward(const LayerSaved& s);
  void leave_function(TensorId also = kNoTensor);

  BlockWriter& w_;
  const NodePlan& first_;
  std::vector<const NodePlan*> group_;
  const NodePlan* product_ = nullptr;
  std::vector<Low> low_;
};

}  // namespace plimsoll::planner::pytorch
