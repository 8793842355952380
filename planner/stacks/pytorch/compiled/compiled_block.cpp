// One op for each kernel.
//
// torch 2.11, torch/_functorch/_aot_autograd/runtime_wrappers.py: the backward is one autograd
// node, which returns all gradients at once. What it saved goes as its kernels have read it (saved
// tensors are cleared, and the graph's list of arguments is its own); the gradient that came in is
// held by the engine until the node returns.
#include "planner/stacks/pytorch/compiled/compiled_block.h"

#include <algorithm>
#include <cmath>
#include <ranges>

namespace plimsoll::planner::pytorch {

using compiled::Kernel;
using compiled::NodeClass;
using compiled::NodeId;

namespace {
constexpr std::string_view kScaled = "_scaled_mm";

// [m, k] × [k, n]: by how many elements each of the three has.
Gemm gemm_of(const compiled::JointGraph& graph, NodeId id) {
  const auto& in = graph[id].in;
  const bool scaled = std::string_view(graph[id].op) == kScaled;  // behind the factors are scales
  const std::size_t first = scaled ? 0 : in.size() - 2;
  const double a = static_cast<double>(graph[in[first]].elements),
               b = static_cast<double>(graph[in[first + 1]].elements),
               c = static_cast<double>(graph[id].elements);
  const double m = std::sqrt(a * c / b);
  return {scaled ? DType::fp8_e4m3 : graph[id].dtype, m, c / m, a / m};
}
}  // namespace

compiled::Layer CompiledBlock::compile(const BlockPlan& plan,
                                       const models::Recompute& recompute) const {
  return compiled::Layer(
      compiled::region_question(plan, w_.d_, w_.regime_, w_.strategy_, recompute, w_.tokens_));
}

void CompiledBlock::set_inputs(const compiled::Layer& layer, Ref input) {
  layer_ = &layer;
  buffers_.assign(graph().nodes.size(), {});
  const std::size_t window = w_.sliding_ ? 1 : 0;
  const auto set = [&](NodeId id, Ref tensor) {
    if (id != compiled::kNoNode) at(id) = tensor;
  };
  set(layer.region.input, input);
  set(layer.region.cos, {w_.cos_[window]});
  set(layer.region.sin, {w_.sin_[window]});
}

// The tensors that a kernel writes, but for those that stand already.
void CompiledBlock::make(const Kernel& kernel, const std::vector<bool>& kept) {
  for (const NodeId id : kernel.writes) {
    if (!at(id).none()) continue;
    if (kernel.in_place != compiled::kNoNode) {
      at(id) = at(kernel.in_place);
      continue;
    }
    const bool stays = !kept.empty() && kept[static_cast<std::size_t>(id)];
    at(id) = {w_.make(graph()[id].op, graph()[id].elements, graph()[id].dtype,
                      stays ? Category::activations : Category::temporaries)};
  }
}

void CompiledBlock::run(const Kernel& kernel) {
  const compiled::JointNode& node = graph()[kernel.node];
  const std::string_view name = node.op;
  auto op = w_.op(node.op);
  for (const NodeId id : kernel.reads) BlockWriter::read(op, at(id));
  for (const NodeId id : kernel.writes) BlockWriter::write(op, at(id));
  const WorkOfOp work = w_.b_.work();
  if (name == "mm" || name == "addmm" || name == kScaled) {
    work.gemm(gemm_of(graph(), kernel.node));
    w_.take_workspace(op, name != "mm");
  } else if (node.kind == NodeClass::tuple) {
    const bool back = name.ends_with("backward");
    work.attends({back, node.dtype, (back ? 2.5 : 1) * w_.fused_flops()});
    if (!back) return;
    if (w_.path() == AttentionPath::efficient)
      w_.efficient_workspace(op, node.dtype);
    else
      w_.flash_workspace(op, {}, {});
  }
}

void CompiledBlock::forward(const compiled::Layer& layer, const BlockPlan& plan, Ref input,
                            Ref output, std::vector<TensorId>& saved) {
  w_.sliding_ = plan.sliding;
  set_inputs(layer, input);
  at(layer.result) = output;
  std::vector<bool> kept(buffers_.size());
  for (const NodeId id : layer.saved) kept[static_cast<std::size_t>(id)] = true;
  // What stands in another one's memory makes that stay.
  for (const Kernel& kernel : std::views::reverse(layer.forward))
    if (kernel.in_place != compiled::kNoNode && std::ranges::any_of(kernel.writes, [&](NodeId id) {
          return kept[static_cast<std::size_t>(id)];
        }))
      kept[static_cast<std::size_t>(kernel.in_place)] = true;
  for (const Kernel& kernel : layer.forward) {
    make(kernel, kept);
    run(kernel);
  }
  saved.clear();
  for (const NodeId id : layer.saved) saved.push_back(at(id).tensor);
}

void CompiledBlock::begin_gradients(const Kernel& kernel) {
  for (const NodeId id : kernel.writes) {
    const std::int32_t of = layer_->weight_of[static_cast<std::size_t>(id)];
    if (of < 0) continue;
    const compiled::Region::Weight& weight = layer_->region.weights[static_cast<std::size_t>(of)];
    w_.node_ = weight.node;
    const TensorId made = w_.sink_->begin(*weight.names, graph()[weight.input].elements);
    gradients_[static_cast<std::size_t>(of)] = made;
    at(id) = {made};
  }
}

void CompiledBlock::return_gradients(TensorId d_output) {
  auto returned = w_.op("compiled.backward");
  returned.release(d_output);
  for (const TensorId gradient : gradients_) returned.release(gradient);
  w_.b_.work().moves(0, 0);
  for (std::size_t i = 0; i < gradients_.size(); ++i) {
    if (gradients_[i] == kNoTensor) continue;
    w_.node_ = layer_->region.weights[i].node;
    w_.sink_->end(*layer_->region.weights[i].names, gradients_[i]);
  }
  w_.node_ = nullptr;
}

void CompiledBlock::backward(const compiled::Layer& layer, const BlockPlan& plan, Ref input,
                             TensorId d_output, Ref d_input, const std::vector<TensorId>& saved) {
  w_.plan_ = &plan;
  w_.sliding_ = plan.sliding;
  set_inputs(layer, input);
  for (std::size_t i = 0; i < saved.size(); ++i)
    if (graph()[layer.saved[i]].kind != NodeClass::input) at(layer.saved[i]) = {saved[i]};
  for (std::size_t i = 0; i < buffers_.size(); ++i)
    if (graph().nodes[i].kind == NodeClass::tangent) buffers_[i] = {d_output};
  if (layer.input_gradient != compiled::kNoNode) at(layer.input_gradient) = d_input;
  gradients_.assign(layer.region.weights.size(), kNoTensor);
  for (const Kernel& kernel : layer.backward) {
    begin_gradients(kernel);
    make(kernel, {});
    run(kernel);
  }
  return_gradients(d_output);
}

}  // namespace plimsoll::planner::pytorch
