// What autograd saves where hooks take it (torch.autograd.graph.saved_tensors_hooks): a node of the
// forward hands over its tensors in the order in which it saves them, its backward asks for them.
#pragma once

#include "planner/stacks/pytorch/module_types.h"

namespace plimsoll::planner::pytorch {

class SavedHooks {
 public:
  virtual ~SavedHooks() = default;

  // Forward, of the op that was written last. `copied`: what a strided tensor's contiguous copy is
  // called; none: it is contiguous.
  virtual void save(Ref tensor, SymBytes bytes, const char* copied = nullptr) = 0;
  virtual void save_held() = 0;  // a parameter, or a table that the whole model reads
  virtual std::int32_t end_node() = 0;  // its number, one more than the last one's

  // Backward: makes room for what the node saved; what it reads in place of that; the op that is
  // the node.
  virtual void bring(std::int32_t node) = 0;
  virtual Ref brought(std::int32_t node, Ref saved) const = 0;
  virtual void attach(OpBuilder op, std::int32_t node) = 0;
};

// Those that are set, if any.
class NodeHooks {
 public:
  void set(SavedHooks* hooks) { hooks_ = hooks; }
  bool any() const { return hooks_ != nullptr; }

  // Forward. A GEMM of `tokens` rows in this dtype, whose input requires a gradient or not.
  void save_gemm(const ModuleNames& names, const WeightGemm& part, SymInt tokens, DType dtype,
                 bool input_grad, Ref input, GemmSaved& saved);
  void save_function(const TapePart& part, const TapeCounts& counts, std::span<const Ref> given,
                     TapeSaved& saved);
  void save(Ref tensor, SymBytes bytes, const char* copied = nullptr) {
    hooks_->save(tensor, bytes, copied);
  }
  std::int32_t end_node() { return hooks_->end_node(); }

  // Backward.
  void bring(std::int32_t node) {
    if (any() && node != kNoNode) hooks_->bring(node);
  }
  Ref brought(std::int32_t node, Ref saved) const {
    return any() && node != kNoNode ? hooks_->brought(node, saved) : saved;
  }
  TensorId brought(std::int32_t node, TensorId saved) const {
    return brought(node, Ref{saved}).tensor;
  }
  void attach(OpBuilder op, std::int32_t node) {
    if (any() && node != kNoNode) hooks_->attach(op, node);
  }
  // The node that an op of a function's backward belongs to; `before`: the op's before it.
  static std::int32_t node_of(const TapePart& part, const tape::OpOf& op, const TapeSaved& saved,
                              std::int32_t before);

 private:
  void save_value(const TapePart& part, const TapeCounts& counts, std::span<const Ref> given,
                  const TapeSaved& saved, tape::ValueId value);
  SavedHooks* hooks_ = nullptr;
};

}  // namespace plimsoll::planner::pytorch
