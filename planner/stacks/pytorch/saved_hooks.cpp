#include "planner/stacks/pytorch/saved_hooks.h"

#include <algorithm>

namespace plimsoll::planner::pytorch {

// derivatives.yaml: mm saves mat2 and self, addmm mat1 and mat2. The weight is a transposed view,
// which a hook copies before it copies.
void NodeHooks::save_gemm(const ModuleNames& names, const WeightGemm& part, SymInt tokens,
                          DType dtype, bool input_grad, Ref input, GemmSaved& s) {
  const auto weight = [&] {
    if (!input_grad && !part.reads_made) return;
    if (s.weight_cast == kNoTensor) return hooks_->save_held();
    hooks_->save({s.weight_cast}, storage(part.in * part.out, dtype), names.weight_cast);
  };
  if (!part.bias) weight();
  if (part.trains_weight)
    hooks_->save(s.input == kNoTensor ? input : Ref{s.input}, storage(tokens * part.in, dtype));
  if (part.bias) weight();
  s.node = hooks_->end_node();
}

namespace {
bool saves(const tape::Function& f, const tape::Operation& operation) {
  return operation.out != tape::kNone && f.value(operation.out).grad &&
         !f.kept_by(operation).none();
}
}  // namespace

void NodeHooks::save_value(const TapePart& part, const TapeCounts& counts,
                           std::span<const Ref> given, const TapeSaved& saved, tape::ValueId id) {
  if (id == tape::kNone) return;
  const tape::Function& f = part.rule->function();
  const tape::ValueId of = f.value(id).storage;
  const tape::Value& value = f.value(of);
  const bool table = !value.made && !value.grad && of != 0;
  if (value.parameter || table) return hooks_->save_held();
  const auto& kept = part.rule->kept();
  const Ref tensor =
      value.made
          ? Ref{saved.kept[static_cast<std::size_t>(std::ranges::find(kept, of) - kept.begin())]}
          : given[static_cast<std::size_t>(of)];
  hooks_->save(tensor, storage(counts[value.size.extent], value.size.dtype));
}

// Of a node's operands the last one is saved first.
void NodeHooks::save_function(const TapePart& part, const TapeCounts& counts,
                              std::span<const Ref> given, TapeSaved& saved) {
  const tape::Function& f = part.rule->function();
  for (const tape::Operation& operation : f.operations()) {
    if (!saves(f, operation)) continue;
    const tape::Function::Keeps keeps = f.kept_by(operation);
    for (std::size_t i = keeps.in.size(); i-- > 0;)
      save_value(part, counts, given, saved, keeps.in[i]);
    if (keeps.out) save_value(part, counts, given, saved, operation.out);
    if (keeps.beside) save_value(part, counts, given, saved, operation.beside);
    const std::int32_t node = hooks_->end_node();
    if (saved.node == kNoNode) saved.node = node;
  }
}

std::int32_t NodeHooks::node_of(const TapePart& part, const tape::OpOf& op, const TapeSaved& saved,
                                std::int32_t before) {
  if (saved.node == kNoNode || op.part.of == tape::kNone) return before;
  const tape::Function& f = part.rule->function();
  std::int32_t node = saved.node;
  for (const tape::Operation& operation : f.operations()) {
    if (operation.out == op.part.of) return saves(f, operation) ? node : kNoNode;
    if (saves(f, operation)) ++node;
  }
  return kNoNode;
}

}  // namespace plimsoll::planner::pytorch
