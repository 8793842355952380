// A compiled layer's forward and backward as ops of the step: one for each kernel.
//
// torch 2.11, torch/_functorch/_aot_autograd/runtime_wrappers.py: the backward is one autograd
// node, which returns all gradients at once. What it saved goes as its kernels have read it (saved
// tensors are cleared, and the graph's list of arguments is its own); the gradient that came in is
// held by the engine until the node returns.
#include <cmath>

#include "planner/stacks/pytorch/block_writer.h"
#include "planner/stacks/pytorch/compiled/layer.h"

namespace plimsoll::planner::pytorch {

using compiled::Kernel;
using compiled::NodeClass;
using compiled::NodeId;

namespace {
// [m, k] × [k, n]: by how many elements each of the three has.
Gemm gemm_of(const compiled::JointGraph& graph, NodeId id) {
  const auto& in = graph[id].in;
  const double a = static_cast<double>(graph[in[in.size() - 2]].elements),
               b = static_cast<double>(graph[in.back()].elements),
               c = static_cast<double>(graph[id].elements);
  const double m = std::sqrt(a * c / b);
  return {graph[id].dtype, m, c / m, a / m};
}
bool is_product(const compiled::JointNode& node) {
  const std::string_view op = node.op;
  return op == "mm" || op == "addmm";
}
}  // namespace

compiled::Layer BlockWriter::compile(const BlockPlan& plan) const {
  return compiled::Layer(compiled::region_question(plan, d_, regime_, strategy_, tokens_));
}

void BlockWriter::compiled_kernel(const compiled::Layer& layer, const Kernel& kernel,
                                  std::vector<Ref>& buffers) {
  const compiled::JointGraph& graph = layer.region.graph;
  const auto& node = graph[kernel.node];
  const auto at = [&](NodeId id) -> Ref& { return buffers[static_cast<std::size_t>(id)]; };
  auto op = ModuleWriter::op(node.op);
  for (const NodeId id : kernel.reads) read(op, at(id));
  for (const NodeId id : kernel.writes) write(op, at(id));
  const WorkOfOp work = b_.work();
  if (is_product(node)) {
    work.gemm(gemm_of(graph, kernel.node));
    take_workspace(op, node.op[0] == 'a');
  } else if (node.kind == NodeClass::tuple) {
    const bool back = phase_ == Phase::backward && std::string_view(node.op).ends_with("backward");
    work.attends({back, node.dtype, (back ? 2.5 : 1) * fused_flops()});
    if (!back) return;
    if (path() == AttentionPath::efficient)
      efficient_workspace(op, node.dtype);
    else
      flash_workspace(op, {}, {});
  }
}

// The tensors that a kernel writes; `into`: where one of them stands already.
void BlockWriter::compiled_writes(const compiled::Layer& layer, const Kernel& kernel,
                                  const std::vector<bool>& kept, std::vector<Ref>& buffers) {
  const compiled::JointGraph& graph = layer.region.graph;
  for (const NodeId id : kernel.writes) {
    Ref& buffer = buffers[static_cast<std::size_t>(id)];
    if (!buffer.none()) continue;
    if (kernel.in_place != kNoTensor) {
      buffer = buffers[static_cast<std::size_t>(kernel.in_place)];
      continue;
    }
    const bool stays = !kept.empty() && kept[static_cast<std::size_t>(id)];
    buffer = {make(graph[id].op, graph[id].elements, graph[id].dtype,
                   stays ? Category::activations : Category::temporaries)};
  }
}

void BlockWriter::compiled_inputs(const compiled::Layer& layer, Ref input,
                                  std::vector<Ref>& buffers) const {
  buffers.assign(layer.region.graph.nodes.size(), {});
  const std::size_t window = sliding_ ? 1 : 0;
  const auto set = [&](NodeId id, Ref tensor) {
    if (id != compiled::kNoNode) buffers[static_cast<std::size_t>(id)] = tensor;
  };
  set(layer.region.input, input);
  set(layer.region.cos, {cos_[window]});
  set(layer.region.sin, {sin_[window]});
}

void BlockWriter::compiled_forward(const compiled::Layer& layer, const BlockPlan& plan, Ref input,
                                   Ref output, std::vector<TensorId>& saved) {
  sliding_ = plan.sliding;
  std::vector<Ref> buffers;
  compiled_inputs(layer, input, buffers);
  buffers[static_cast<std::size_t>(layer.result)] = output;
  std::vector<bool> kept(buffers.size());
  for (const NodeId id : layer.saved) kept[static_cast<std::size_t>(id)] = true;
  for (const Kernel& kernel : layer.forward) {
    compiled_writes(layer, kernel, kept, buffers);
    compiled_kernel(layer, kernel, buffers);
  }
  saved.clear();
  for (const NodeId id : layer.saved) saved.push_back(buffers[static_cast<std::size_t>(id)].tensor);
}

void BlockWriter::compiled_backward(const compiled::Layer& layer, const BlockPlan& plan, Ref input,
                                    TensorId d_output, Ref d_input,
                                    const std::vector<TensorId>& saved) {
  plan_ = &plan;
  sliding_ = plan.sliding;
  const compiled::JointGraph& graph = layer.region.graph;
  std::vector<Ref> buffers;
  compiled_inputs(layer, input, buffers);
  for (std::size_t i = 0; i < saved.size(); ++i)
    if (graph[layer.saved[i]].kind != NodeClass::input)
      buffers[static_cast<std::size_t>(layer.saved[i])] = {saved[i]};
  for (std::size_t i = 0; i < graph.nodes.size(); ++i)
    if (graph.nodes[i].kind == NodeClass::tangent) buffers[i] = {d_output};
  if (layer.input_gradient != compiled::kNoNode)
    buffers[static_cast<std::size_t>(layer.input_gradient)] = d_input;
  std::vector<TensorId> gradients(layer.region.weights.size(), kNoTensor);
  for (const Kernel& kernel : layer.backward) {
    for (const NodeId id : kernel.writes) {
      const std::int32_t of = layer.weight_of[static_cast<std::size_t>(id)];
      if (of < 0) continue;
      const compiled::Region::Weight& weight = layer.region.weights[static_cast<std::size_t>(of)];
      node_ = weight.node;
      const TensorId made = sink_->begin(*weight.names, graph[weight.input].elements);
      gradients[static_cast<std::size_t>(of)] = made;
      buffers[static_cast<std::size_t>(id)] = {made};
    }
    compiled_writes(layer, kernel, {}, buffers);
    compiled_kernel(layer, kernel, buffers);
  }
  auto returned = op("compiled.backward");
  returned.release(d_output);
  for (const TensorId gradient : gradients) returned.release(gradient);
  b_.work().moves(0, 0);
  for (std::size_t i = 0; i < gradients.size(); ++i) {
    if (gradients[i] == kNoTensor) continue;
    node_ = layer.region.weights[i].node;
    sink_->end(*layer.region.weights[i].names, gradients[i]);
  }
  node_ = nullptr;
}

}  // namespace plimsoll::planner::pytorch
