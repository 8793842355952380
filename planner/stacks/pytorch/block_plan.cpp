#include "planner/stacks/pytorch/block_plan.h"

#include <algorithm>
#include <string_view>

#include "models/recompute.h"
#include "planner/stacks/pytorch/adapter.h"

namespace plimsoll::planner::pytorch {

using models::Activation;
using models::Node;
using models::OpKind;
using models::ValueId;

namespace {

// Has its backward anything to read?
bool saves(const NodePlan& at) {
  const Node& node = *at.node;
  switch (node.kind) {
    case OpKind::linear:  // MatMul4Bit keeps only the packed weight, beside saved tensors; GPTQ's
                          // and AWQ's functions save it, HQQ's the input
      return at.linear->packed == nullptr || at.linear->adapted() || is_gptq(*at.linear) ||
             is_awq(*at.linear) || is_torchao(*at.linear) || is_hqq(*at.linear);
    case OpKind::norm:
    case OpKind::rotary:
    case OpKind::attention:
    case OpKind::activation:
    case OpKind::multiply:
    case OpKind::experts:
    case OpKind::route:
    case OpKind::gather:
    case OpKind::weigh:
    case OpKind::add_rows:
      return true;
    case OpKind::dropout:
      return node.probability > 0;
    case OpKind::split:
    case OpKind::slice:
    case OpKind::concatenate:
    case OpKind::heads:
    case OpKind::reshape:
    case OpKind::expand:
    case OpKind::scale:
    case OpKind::add:
    case OpKind::visitors:
    case OpKind::gather_sequence:
    case OpKind::scatter_sequence:
    case OpKind::leave:
      return false;
  }
  return false;
}

// Of the node's results. The rotary tables have the stream's dtype: under autocast 16-bit queries
// and keys are promoted. GELU written in Python begins with pow, which autocast runs in fp32.
DType result(const BlockPlan& plan, const NodePlan& at, const Regime& regime, DType stream) {
  const Node& node = *at.node;
  const DType first =
      node.in.empty() ? stream : plan.values[static_cast<std::size_t>(node.in[0])].dtype;
  switch (node.kind) {
    case OpKind::norm:
      return at.kernel != NormKernel::eager ? first : norm_dtype(at.norm->kind, first, regime);
    case OpKind::linear:
      if (at.linear->adapter == Adapter::vera) return first;
      if (at.linear->packed != nullptr &&
          !is_hqq(*at.linear))  // Linear4bit returns what it was given
        return adapted_result(*at.linear, regime, first);
      [[fallthrough]];
    case OpKind::attention:
      return regime.compute;
    case OpKind::rotary:
      return node.casts_back || node.pairs || node.joins || regime.patch.rotary
                 ? first
                 : promoted(first, regime.embedded);
    case OpKind::experts:
      return plan.value(node.in[1]).dtype;
    case OpKind::activation:
      return node.activation == Activation::gelu_python && regime.autocast ? DType::fp32 : first;
    case OpKind::add:
    case OpKind::concatenate:
    case OpKind::weigh:
      return promoted(first, plan.value(node.in[1]).dtype);
    case OpKind::visitors:
      return DType::int64;
    case OpKind::split:
    case OpKind::slice:
    case OpKind::heads:
    case OpKind::reshape:
    case OpKind::expand:
    case OpKind::scale:
    case OpKind::multiply:
    case OpKind::dropout:
    case OpKind::gather:
    case OpKind::add_rows:
    case OpKind::gather_sequence:
    case OpKind::scatter_sequence:
    case OpKind::leave:
      return first;
    case OpKind::route:
      return plan.value(node.in[1]).dtype;
  }
  return first;
}

const char* gradient_name(const NodePlan& at) {
  if (at.node->kind == OpKind::linear) return node_names(at.node->name).out_grad;
  return at.names != nullptr ? at.names->grad : "";
}

// Beside the scores and the zeros whole numbers, and what has no gradient.
void route_result(std::size_t i, ValuePlan& out) {
  constexpr std::size_t kScores = 0, kSum = 2;
  if (i != kScores) out.grad = false;
  if (i != kScores && i != kSum) out.dtype = DType::int64;
}

// Whether a node's results are of the rank's part of each sequence.
bool makes_part(const BlockPlan& plan, const Node& node) {
  if (node.kind == OpKind::scatter_sequence) return true;
  return node.kind != OpKind::gather_sequence && !node.in.empty() && plan.value(node.in[0]).of_part;
}

NormKernel norm_kernel(const Node& node, const KernelPatch& liger) {
  return std::string_view(node.name).starts_with("self_attn.") ? liger.heads : liger.norms;
}

}  // namespace

bool BlockPlan::ends_in_place(const NodePlan& at) const {
  const Node& first = *nodes.front().node;
  return !sums_apart && nodes.front().kernel == NormKernel::liger_in_place &&
         first.in[0] == models::kBlockInput && &at == &nodes[1] && at.node->in[0] == first.out[0];
}

void BlockPlan::store_by_op(const models::Recompute& recompute) {
  int gemms = 0;
  for (NodePlan& at : nodes)
    at.stored = models::keeps(recompute, *at.node, at.linear != nullptr ? gemms++ : 0);
}

// An activation is left to the GEMM that reads its result.
bool BlockPlan::joins(NodePlan& at) {
  const Node& node = *at.node;
  gates_.resize(values.size(), models::kNoValue);
  const auto gate = [&](ValueId id) { return gates_[static_cast<std::size_t>(id)]; };
  if (node.kind == OpKind::activation) {
    ValuePlan& out = values[static_cast<std::size_t>(node.out[0])];
    out.dtype = value(node.in[0]).dtype;
    out.grad = value(node.in[0]).grad;
    gates_[static_cast<std::size_t>(node.out[0])] = node.in[0];
    return true;
  }
  if (node.kind != OpKind::multiply) return false;
  const bool first = gate(node.in[0]) != models::kNoValue;
  at.gate = gate(node.in[first ? 0 : 1]);
  at.up = node.in[first ? 1 : 0];
  return false;
}

BlockPlan::BlockPlan(const LayerPart& part, const Regime& regime, DType input, bool input_grad)
    : layer(&part), sums_apart(regime.patch.sums_apart) {
  const models::Block& block = *part.block;
  values.resize(block.widths.size());
  for (std::size_t i = 0; i < values.size(); ++i) values[i].width = block.widths[i];
  values[models::kBlockInput].dtype = input;
  values[models::kBlockInput].grad = input_grad;
  values[models::kBlockInput].stream = true;
  const auto gathers = [](const Node& node) { return node.kind == OpKind::gather_sequence; };
  values[models::kBlockInput].of_part = std::ranges::any_of(block.nodes, gathers);
  first_save = block.nodes.size();
  for (const Node& node : block.nodes) {
    NodePlan at{.node = &node};
    bool trains = false;
    if (regime.patch.gated && joins(at)) continue;
    if (node.kind == OpKind::norm) {
      at.kernel = norm_kernel(node, regime.patch);
      at.norm = &part.norms[block.modules[static_cast<std::size_t>(node.module)].place];
      at.place = static_cast<std::size_t>(at.norm - part.norms.data());
      at.norm_names = &module_names(node.name);
      trains = at.norm->trains();
    } else if (node.kind == OpKind::linear) {
      at.linear = &part.linears[block.modules[static_cast<std::size_t>(node.module)].place];
      at.place = static_cast<std::size_t>(at.linear - part.linears.data());
      at.linear_names = &linear_names(node.name);
      trains = at.linear->trains();
    } else if (node.kind == OpKind::experts) {
      at.experts = &part.experts[block.modules[static_cast<std::size_t>(node.module)].place];
      at.place = static_cast<std::size_t>(at.experts - part.experts.data());
      at.experts_names = &experts_names(node.name);
      trains = at.experts->trains();
    } else {
      at.names = &node_names(node.name);
    }
    if (node.kind == OpKind::attention) {
      at.place = attentions++;
      trains = part.prefixed || (node.module >= 0 && part.train_sinks);
    }
    if (node.kind == OpKind::activation) at.place = activations++;
    if (node.kind == OpKind::dropout) at.place = dropouts++;
    if (node.kind == OpKind::gather_sequence || node.kind == OpKind::scatter_sequence)
      at.sequence_names = &sequence_names(node.name);
    if (node.kind == OpKind::attention || node.kind == OpKind::rotary)
      at.attention_names = &attention_names(node.name);
    if (node.kind == OpKind::rotary || node.kind == OpKind::split || node.kind == OpKind::slice)
      at.operand_names = &operand_names(node.name);
    const DType dtype = result(*this, at, regime, input);
    const bool any = std::ranges::any_of(node.in, [&](ValueId id) { return value(id).grad; });
    at.grad = trains || any;
    for (std::size_t i = 0; i < node.out.size(); ++i) {
      ValuePlan& out = values[static_cast<std::size_t>(node.out[i])];
      out.dtype = dtype;
      out.stream = node.kind == OpKind::add && value(node.in[0]).stream;
      out.heads_first = node.kind == OpKind::concatenate || node.kind == OpKind::reshape ||
                        node.kind == OpKind::expand || node.joins || node.halves;
      // Each of rotary's results is made of one operand.
      out.grad = node.kind == OpKind::rotary ? value(node.in[i % node.in.size()]).grad : at.grad;
      out.grad_name = gradient_name(at);
      out.of_part = makes_part(*this, node);
      out.expert = node.kind == OpKind::add_rows ? -1 : node.expert;
      if (node.kind == OpKind::route) route_result(i, out);
    }
    sliding = sliding || node.sliding;
    if (saves(at)) {
      last_save = nodes.size();
      if (at.grad) first_save = std::min(first_save, nodes.size());
    }
    nodes.push_back(at);
  }
  if (regime.patch.adapters == KernelPatch::Adapters::fms) fuse_adapters();
  if (regime.patch.adapters == KernelPatch::Adapters::unsloth) fuse_unsloth();
}

// unsloth/models/llama.py, patch_peft_model: queries, keys and values where all three have adapters
// and none a bias, what attention's result goes through, and the MLP where all of it has adapters.
void BlockPlan::fuse_unsloth() {
  const auto adapted = [&](std::size_t i, std::string_view name) {
    return i < nodes.size() && nodes[i].linear != nullptr && nodes[i].linear->lora_rank > 0 &&
           !nodes[i].linear->bias && std::string_view(nodes[i].node->name).ends_with(name);
  };
  const auto fuse = [&](std::size_t first, std::initializer_list<std::size_t> behind) {
    nodes[first].fused = 1 + behind.size();
    for (const std::size_t i : behind) nodes[first + i].follows = true;
  };
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    const std::size_t k = i + 1 < nodes.size() && nodes[i + 1].norm != nullptr ? 2 : 1;
    if (adapted(i, "q_proj") && adapted(i + k, "k_proj") && adapted(i + 2 * k, "v_proj"))
      fuse(i, {k, 2 * k});
    if (adapted(i, "o_proj")) fuse(i, {});
    if (!adapted(i, "gate_proj") || !adapted(i + 1, "up_proj")) continue;
    if (!adapted(i + 3, "down_proj") || nodes[i + 2].node->kind != OpKind::multiply) continue;
    fuse(i, {1, 3});
    nodes[i + 2].follows = true;  // what gate and up make
  }
}

// models/llama.py, mistral.py and granite.py of fms-acceleration's plugin: queries, keys and values
// where all three have adapters, and what attention's result goes through.
void BlockPlan::fuse_adapters() {
  const auto adapted = [&](std::size_t i, std::string_view name) {
    return i < nodes.size() && nodes[i].linear != nullptr && nodes[i].linear->packed != nullptr &&
           nodes[i].linear->lora_rank > 0 && std::string_view(nodes[i].node->name).ends_with(name);
  };
  int of_mlp = 0;
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    if (adapted(i, "q_proj") && adapted(i + 1, "k_proj") && adapted(i + 2, "v_proj")) {
      nodes[i].fused = kMostFused;
      nodes[i + 1].follows = nodes[i + 2].follows = true;
    }
    if (adapted(i, "o_proj")) nodes[i].fused = 1;
    for (const char* name : {"gate_proj", "up_proj", "down_proj"}) of_mlp += adapted(i, name);
  }
  check(of_mlp < 3, ErrorKind::bad_input,
        "--kernels fused with adapters of gate_proj, up_proj and down_proj on a packed base: "
        "fms-acceleration's LoRA_MLP stops in its backward with \"The size of tensor a must match "
        "the size of tensor b\" (it multiplies the result's gradient with a mask of the MLP's "
        "width); with --lora-targets attention it trains");
}

}  // namespace plimsoll::planner::pytorch
