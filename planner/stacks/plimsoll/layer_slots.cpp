#include "planner/stacks/plimsoll/layer_slots.h"

#include <algorithm>
#include <string>

#include "models/decisions/layer_modules.h"

namespace plimsoll::planner::own {

namespace {

using models::OpKind;
using models::decisions::layer_module;
using models::decisions::LayerModule;

// In the order of LayerModule.
constexpr LinearPart LayerSlots::*kLinears[models::decisions::kLayerLinears] = {
    &LayerSlots::q,    &LayerSlots::k,  &LayerSlots::v,   &LayerSlots::o,
    &LayerSlots::gate, &LayerSlots::up, &LayerSlots::down};
constexpr NormPart LayerSlots::*kNorms[models::decisions::kLayerNorms] = {
    &LayerSlots::input_norm, &LayerSlots::post_norm, &LayerSlots::q_norm, &LayerSlots::k_norm};

// One letter a node, but for the norms of queries and keys, which may be missing, and for Python's
// frames, which this runtime does not have.
constexpr std::string_view kLlamaNodes = "NLLLRAL+NLXL*L+", kGpt2Nodes = "NLSALD+NLXLD+";

char letter(OpKind kind) {
  switch (kind) {
    case OpKind::norm:
      return 'N';
    case OpKind::linear:
      return 'L';
    case OpKind::split:
      return 'S';
    case OpKind::slice:
      return '/';
    case OpKind::concatenate:
      return '&';
    case OpKind::heads:
      return 'H';
    case OpKind::reshape:
      return 'v';
    case OpKind::scale:
      return 'x';
    case OpKind::rotary:
      return 'R';
    case OpKind::attention:
      return 'A';
    case OpKind::activation:
      return 'X';
    case OpKind::multiply:
      return '*';
    case OpKind::add:
      return '+';
    case OpKind::dropout:
      return 'D';
    case OpKind::experts:
      return 'E';
    case OpKind::leave:
      return ' ';
  }
  return '?';
}

// Llama's layers, and GPT-2's, whose Conv1D tells them from those that only run alike.
bool runs(const models::Block& block) {
  std::string nodes;
  for (const models::Node& node : block.nodes) {
    const std::string_view name = node.name;
    const bool heads = name == "self_attn.q_norm" || name == "self_attn.k_norm";
    if (!heads && node.kind != OpKind::leave) nodes.push_back(letter(node.kind));
  }
  const auto is = [&](models::ModuleClass kind) {
    return std::ranges::all_of(block.modules, [&](const models::Module& module) {
      return module.kind == kind ||
             (models::is_norm(module.kind) && module.kind != models::ModuleClass::rms_norm_fp32);
    });
  };
  return (nodes == kLlamaNodes && is(models::ModuleClass::linear)) ||
         (nodes == kGpt2Nodes && is(models::ModuleClass::conv1d));
}

}  // namespace

LayerSlots slots_of(const LayerRun& run) {
  const LayerPart& layer = run.pattern.front();
  check(run.period() == 1 && runs(*layer.block), ErrorKind::unsupported,
        [] { return std::string("our own runtime has the layers of Llama and GPT-2 only"); });
  LayerSlots slots;
  for (NormPart LayerSlots::*norm : kNorms) slots.*norm = {.train_weight = false};
  for (const models::Module& module : layer.block->modules) {
    const LayerModule name = layer_module(module.name);
    if (is_linear(name))
      slots.*kLinears[place_of(name)] = layer.linears[module.place];
    else
      slots.*kNorms[place_of(name)] = layer.norms[module.place];
  }
  return slots;
}

}  // namespace plimsoll::planner::own
